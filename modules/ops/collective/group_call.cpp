module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {

using collective::Communicator;

ShardRange part_of(std::int64_t extent, const Communicator& group, int rank) {
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

bool in_rank_order(const Dims& shape, int dim, const Communicator& group) {
  return shape[dim] % group.size() == 0 && is_outermost(shape, dim) && shape.product() > 0;
}

int checked_dim(const Call& call, std::int64_t dim) {
  if (dim < 0 || dim >= call.in[0].dims()) {
    refuse(call, fmt::format("dim {} is out of range for {}", dim, to_string(call.in[0].shape())));
  }
  return static_cast<int>(dim);
}

int checked_part(const Call& call, std::int64_t wanted, std::int64_t extent,
                 const Communicator& group) {
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

}  // namespace tessera::ops

namespace tessera {

ArgumentValue ArgumentType<ops::GroupArgument>::value(ops::GroupArgument v) {
  if (v.group == nullptr) {
    return std::string("none");
  }
  return fmt::format("ranks {}{}{}", fmt::join(v->global_ranks(), " "),
                     v->name().empty() ? "" : " named ", v->name());
}

ops::GroupArgument ArgumentType<ops::GroupArgument>::from_value(const ArgumentValue& v) {
  const std::string* const text = std::get_if<std::string>(&v);
  if (text != nullptr && *text == "none") {
    return {};
  }
  constexpr std::string_view begin = "ranks ";
  constexpr std::string_view before_name = " named ";
  if (text == nullptr || !text->starts_with(begin)) {
    wrong_argument("group (\"ranks 0 1 2\", \"ranks 0 1 2 named NAME\")", v);
  }
  const std::size_t name_at = text->find(before_name);
  std::istringstream words(text->substr(begin.size(), name_at - begin.size()));
  std::vector<int> ranks;
  for (int rank = 0; words >> rank;) {
    ranks.push_back(rank);
  }
  if (ranks.empty() || !words.eof()) {
    wrong_argument("group (\"ranks 0 1 2\", \"ranks 0 1 2 named NAME\")", v);
  }
  return {&collective::World::current().communicator(
      ranks, name_at == std::string::npos ? "" : text->substr(name_at + before_name.size()))};
}

}  // namespace tessera

namespace tessera::ops {

PendingTensor start(const Op& op, const Tensor& x, const Attributes& attributes,
                    PendingTensor (*issue)(const Call&, const Tensor&)) {
  const Tensor local = detached(x);
  if (!is_on_host(local)) {  // the device's own kernel, which is complete when it returns
    return {call_kernel(op, {&local, 1}, attributes)[0], {}, {}, {}};
  }
  const Call call{op, {&local, 1}, attributes};
  ResultShapes shapes;
  op.infer(call, shapes);
  return issue(call, empty(shapes[0].shape, shapes[0].dtype));
}

PendingTensor::PendingTensor(Tensor result, collective::Work work, std::vector<Tensor> kept,
                             std::function<void()> finish)
    : result_(std::move(result)),
      kept_(std::move(kept)),
      finish_(std::move(finish)),
      work_(std::move(work)) {}

PendingTensor& PendingTensor::operator=(PendingTensor&& other) noexcept {
  work_ = std::move(other.work_);  // the first: completes what is in flight here
  result_ = std::move(other.result_);
  kept_ = std::move(other.kept_);
  finish_ = std::move(other.finish_);
  return *this;
}

const Tensor& PendingTensor::wait() {
  work_.wait();
  kept_.clear();
  if (finish_) {
    std::exchange(finish_, nullptr)();
  }
  return result_;
}

bool PendingTensor::done() { return work_.done(); }

}  // namespace tessera::ops
