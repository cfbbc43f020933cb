module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {

void check_given(const GroupArgument& group) {
  require(group.group != nullptr, "group: the call has none; pass ranks or a communicator");
}

ShardRange part_of(std::int64_t extent, const GroupArgument& group, int rank) {
  return chunk_of({0, extent}, group.size(), rank);
}

Dims with_extent(const Dims& shape, int dim, std::int64_t extent) {
  Dims changed = shape;
  changed[dim] = extent;
  return changed;
}

bool is_outermost(const Dims& shape, int dim) {
  return std::all_of(shape.begin(), shape.begin() + dim, [](std::int64_t d) { return d == 1; });
}

bool in_rank_order(const Dims& shape, int dim, const GroupArgument& group) {
  return shape[dim] % group.size() == 0 && is_outermost(shape, dim) && shape.product() > 0;
}

int checked_dim(const Call& call, std::int64_t dim) {
  if (dim < 0 || dim >= call.in[0].dims()) {
    refuse(call, fmt::format("dim {} is out of range for {}", dim, to_string(call.in[0].shape())));
  }
  return static_cast<int>(dim);
}

int checked_part(const Call& call, std::int64_t wanted, std::int64_t extent,
                 const GroupArgument& group) {
  const int dim = checked_dim(call, wanted);
  if (extent < 0) {
    refuse(call, fmt::format("the extent is negative (expected 0 or more, got {})", extent));
  }
  const std::int64_t expected = part_of(extent, group, group.rank()).length;
  if (call.in[0].shape()[dim] != expected) {
    refuse(call, fmt::format("rank {} of {} has a shard of {} in dim {} (expected {} of {})",
                             group.rank(), group.size(), to_string(call.in[0].shape()), dim,
                             expected, extent));
  }
  return dim;
}

namespace {

/// "0 1 2", "0 to 14", "0 to 14 by 2". Where the words are something else, some are left, or there
/// are not ranks.
std::vector<int> ranks_of_words(std::istringstream& words) {
  std::vector<int> ranks;
  for (int rank = 0; words >> rank;) {
    ranks.push_back(rank);
  }
  if (words.eof() || ranks.size() != 1) {
    return ranks;
  }
  words.clear();
  std::string word;
  int last = 0;
  int step = 1;
  if (!(words >> word) || word != "to" || !(words >> last) ||
      (words >> word && (word != "by" || !(words >> step)))) {
    return {};
  }
  constexpr int most = 1 << 20;  // ranks
  if (step < 1 || last < ranks[0] || (last - ranks[0]) % step != 0 || last >= most) {
    return {};
  }
  while (ranks.back() < last) {
    ranks.push_back(ranks.back() + step);
  }
  return ranks;
}

}  // namespace
}  // namespace tessera::ops

namespace tessera {

ArgumentValue ArgumentType<ops::GroupArgument>::value(ops::GroupArgument v) {
  if (v.group == nullptr) {
    return std::string("none");
  }
  const auto& [first, count] = v.group->terms;
  return count == 0
             ? to_string(*v.group)
             : fmt::format("terms {} to {} of {}", first, first + count - 1, to_string(*v.group));
}

ops::GroupArgument ArgumentType<ops::GroupArgument>::from_value(const ArgumentValue& v) {
  const std::string* const text = std::get_if<std::string>(&v);
  if (text != nullptr && *text == "none") {
    return {};
  }
  constexpr std::string_view before_terms = "terms ";
  constexpr std::string_view after_terms = " of ";
  constexpr std::string_view begin = "ranks ";
  constexpr std::string_view before_name = " named ";
  constexpr const char* expected =
      "group (\"ranks 0 1 2\", \"ranks 0 to 14 by 2\", \"ranks 0 1 2 named NAME\", \"terms 0 to 1 "
      "of ranks 0 1 2\")";
  if (text != nullptr && text->starts_with(before_terms)) {
    const std::size_t end = std::min(text->find(after_terms), text->size());
    std::istringstream words(text->substr(before_terms.size(), end - before_terms.size()));
    std::string word;
    int first = 0;
    int last = 0;
    const bool given = words >> first >> word >> last && words.eof() && word == "to";
    if (!given || end == text->size()) {
      wrong_argument(expected, v);
    }
    const ops::GroupArgument whole = from_value(text->substr(end + after_terms.size()));
    if (whole.group == nullptr || whole.group->whole != nullptr || first < 0 || last < first ||
        last >= whole.size()) {
      wrong_argument(expected, v);
    }
    return whole.with_terms({first, last - first + 1});
  }
  if (text == nullptr || !text->starts_with(begin)) {
    wrong_argument(expected, v);
  }
  const std::size_t name_at = text->find(before_name);
  std::istringstream words(text->substr(begin.size(), name_at - begin.size()));
  const std::vector<int> ranks = ops::ranks_of_words(words);
  if (ranks.empty() || !words.eof()) {
    wrong_argument(expected, v);
  }
  std::vector<int> sorted = ranks;
  if (!std::ranges::is_sorted(sorted)) {
    std::ranges::sort(sorted);
  }
  if (sorted.front() < 0 || std::ranges::adjacent_find(sorted) != sorted.end()) {
    wrong_argument("group (ranks from 0, each once)", v);
  }
  return ops::GroupArgument::of(
      ranks, name_at == std::string::npos ? "" : text->substr(name_at + before_name.size()));
}

}  // namespace tessera

namespace tessera::ops {

GroupArgument GroupArgument::of(std::span<const int> ranks, std::string_view name,
                                const collective::MemberRange& terms) {
  static std::mutex mutex;
  static std::deque<RankGroup> groups;  // few: one for each set of axes of the meshes
  if (terms == collective::MemberRange{0, static_cast<std::int32_t>(ranks.size())}) {
    return of(ranks, name);
  }
  const RankGroup* const whole = terms.count == 0 ? nullptr : of(ranks, name).group;
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find_if(groups, [&](const RankGroup& g) {
    return std::ranges::equal(g.ranks, ranks) && g.name == name && g.terms == terms;
  });
  return {found != groups.end()
              ? &*found
              : &groups.emplace_back(
                    RankGroup{{.ranks = {ranks.begin(), ranks.end()}, .name = std::string(name)},
                              fmt::format("{} in a stream", name),
                              terms,
                              whole})};
}

GroupArgument GroupArgument::of(const collective::Communicator& communicator) {
  return of(communicator.global_ranks(), communicator.name());
}

int GroupArgument::rank() const {
  check_given(*this);
  const auto found = std::ranges::find(group->ranks, current_rank());
  if (found == group->ranks.end()) {
    fail(fmt::format("group: rank {} is not in it ({}); only its ranks make the call",
                     current_rank(),
                     std::get<std::string>(ArgumentType<GroupArgument>::value(*this))));
  }
  return static_cast<int>(found - group->ranks.begin());
}

IssuedCollective::IssuedCollective(collective::Work work, std::vector<Tensor> kept,
                                   std::function<void(const Tensor&)> finish)
    : kept_(std::move(kept)), finish_(std::move(finish)), work_(std::move(work)) {}

IssuedCollective::IssuedCollective(collective::Work work, std::vector<Tensor> kept,
                                   CallSources sources)
    : kept_(std::move(kept)), sources_(std::move(sources)), work_(std::move(work)) {}

void CallSources::hand_over() {
  if (!sources_.empty()) {
    communicator_->keep_until_read(
        std::make_shared<std::vector<Tensor>>(std::exchange(sources_, {})));
  }
}

CallSources::~CallSources() {
  try {
    hand_over();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): see the interface
  }
}

void IssuedCollective::complete(const Tensor& result) {
  work_.wait();
  kept_.clear();
  sources_.hand_over();
  if (finish_) {
    std::exchange(finish_, nullptr)(result);
  }
}

PendingTensor issue(const Op& op, std::initializer_list<Tensor> in, const Attributes& attributes) {
  std::vector<Tensor> locals;
  for (const Tensor& x : in) {
    locals.push_back(detached(x));
  }
  return PendingTensor(std::move(call_kernel(op, locals, attributes)[0]));
}

const Tensor& PendingTensor::wait() {
  if (std::exchange(issued_, false)) {
    ops::wait(result_);
  }
  return result_;
}

bool PendingTensor::done() const {
  auto* const issued =
      issued_ ? dynamic_cast<PendingCollective*>(result_.storage().pending()) : nullptr;
  return issued == nullptr || issued->done();
}

}  // namespace tessera::ops
