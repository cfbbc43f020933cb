// Bytes that a rank receives in a collective: the calls of communicators say who reads what of whom
// (tessera.calls), and this table says which call each operator makes.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.calls;
import :communication;
import :shadow;
import :statistics;

namespace tessera::graph {
namespace {

using collective::Call;
using collective::CallKind;
using collective::Segment;

/// A collective with its tensors and arguments, as one rank of its group sees it.
class Collective {
 public:
  Collective(const Program& program, const Instruction& i)
      : program_(program), instruction_(i), ranks_(group_of(i)->ranks) {
    for (const TensorIndex number : i.out) {
      add(number, made);
    }
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      add(i.in[k], i.writes(k) ? made : read);
    }
    const auto found = std::ranges::find(ranks_, program.rank);
    rank = found == ranks_.end() ? 0 : static_cast<int>(found - ranks_.begin());
  }

  int size() const { return static_cast<int>(ranks_.size()); }

  std::optional<ArgumentValue> value(std::string_view name) const {
    if (instruction_.op->arguments == nullptr) {
      return std::nullopt;
    }
    const std::span<const ArgumentField> fields = instruction_.op->arguments->fields;
    const auto at = std::ranges::find(fields, name, &ArgumentField::name);
    return at == fields.end()
               ? std::nullopt
               : std::optional(instruction_.op->arguments->values(
                     instruction_.attributes)[static_cast<std::size_t>(at - fields.begin())]);
  }
  std::int64_t number(std::string_view name) const {
    const std::optional<ArgumentValue> found = value(name);
    const auto* const number = found ? std::get_if<std::int64_t>(&*found) : nullptr;
    return number == nullptr ? 0 : *number;
  }

  /// By the form of the call. `begins`: where what each member sends begins.
  std::int64_t bytes(CallKind kind, DType dtype, std::int64_t count, const Segment& array,
                     std::int64_t root = -1, const std::int64_t* begins = nullptr) const {
    const Call call{
        .kind = kind, .dtype = dtype, .root = static_cast<std::int32_t>(root), .count = count};
    return collective::received_bytes(call, {&array, 1}, rank, size(), begins);
  }
  /// What each member sends, in elements.
  std::int64_t bytes_by_counts(DType dtype, std::span<const std::int64_t> counts) const {
    std::vector<std::int64_t> begins{0};
    for (const std::int64_t count : counts) {
      begins.push_back(begins.back() + count);
    }
    return bytes(CallKind::all_to_all_counts, dtype, 0, {.total = begins.back()}, -1,
                 begins.data());
  }
  /// The boxes of a change of layout that come from each rank.
  std::int64_t bytes_of_boxes() const {
    const auto spec = [&](const char* name) {
      return ArgumentType<SpecArgument>::from_value(value(name).value());
    };
    const SpecArgument from = spec("from");
    const SpecArgument to = spec("to");
    const bool within = from->layout.mesh() == to->layout.mesh();
    std::vector<std::int64_t> counts(ranks_.size(), 0);
    for (const Transfer& t : within
                                 ? transfers(from->layout, ranks_, to->layout, ranks_, from->shape)
                                 : transfers(from->layout, to->layout, from->shape)) {
      const auto source = std::ranges::find(ranks_, t.source);
      if (t.destination == program_.rank && source != ranks_.end()) {
        counts[static_cast<std::size_t>(source - ranks_.begin())] += t.box.shape.product();
      }
    }
    return bytes_by_counts(from->dtype, counts);
  }

  std::vector<const ProgramTensor*> read = {}, made = {};
  int rank = 0;  // within the group

 private:
  void add(TensorIndex number, std::vector<const ProgramTensor*>& to) const {
    if (number.exists()) {
      to.push_back(&program_.tensors[number]);
    }
  }

  const Program& program_;
  const Instruction& instruction_;
  const std::vector<int>& ranks_;
};

std::int64_t elements_of(const ProgramTensor& x) { return x.shape.product(); }

/// A whole tensor that is cut along the operator's dim.
Segment cut(const Collective& c, const ProgramTensor& whole) {
  const auto dim = static_cast<int>(c.number("dim"));
  const std::int64_t extent = whole.shape.size() == 0 ? 1 : whole.shape[dim];
  const std::int64_t total = elements_of(whole);
  return {.chunk = total == 0 ? 0 : total / extent * chunk_size(extent, c.size()), .total = total};
}

std::int64_t all_reduce(const Collective& c) {
  std::int64_t bytes = 0;
  for (const ProgramTensor* const x : c.made) {
    bytes += c.bytes(CallKind::all_reduce, x->dtype, elements_of(*x), {.total = elements_of(*x)});
  }
  return bytes;
}

std::int64_t all_gather(const Collective& c) {
  std::int64_t bytes = 0;
  for (const ProgramTensor* const whole : c.made) {
    bytes += c.bytes(CallKind::all_gather_segments, whole->dtype, 0, cut(c, *whole));
  }
  return bytes;
}

/// Sums may be wider than what is sent.
std::int64_t reduce_scatter(const Collective& c) {
  std::int64_t bytes = 0;
  for (const ProgramTensor* const whole : c.read) {
    bytes += c.bytes(CallKind::reduce_scatter_segments, whole->dtype, 0, cut(c, *whole));
  }
  return bytes;
}

std::int64_t all_to_all(const Collective& c) {
  const ProgramTensor& x = *c.made.at(0);
  const std::int64_t extent = x.shape[static_cast<int>(c.number("from_dim"))];
  std::vector<std::int64_t> counts;
  for (int member = 0; member < c.size(); ++member) {
    counts.push_back(
        extent == 0 ? 0 : elements_of(x) / extent * chunk_of({0, extent}, c.size(), member).length);
  }
  return c.bytes_by_counts(x.dtype, counts);
}

/// How many rows travel is in tensors. Experts that have equally many get as many as they send: as
/// many as the side has whose rows are all in use.
std::int64_t all_to_all_rows(const Collective& c) {
  const ProgramTensor& result = *c.made.at(0);
  const std::int64_t elements = std::min(elements_of(result), elements_of(*c.read.at(0)));
  std::vector<std::int64_t> counts;
  for (int member = 0; member < c.size(); ++member) {
    counts.push_back(elements * (member + 1) / c.size() - elements * member / c.size());
  }
  return c.bytes_by_counts(result.dtype, counts);
}

std::int64_t shift(const Collective& c) {
  const ProgramTensor& x = *c.made.at(0);
  const std::int64_t by = (c.number("by") % c.size() + c.size()) % c.size();
  return c.bytes(CallKind::shift, x.dtype, elements_of(x), {.total = elements_of(x)}, by);
}

std::int64_t mirror(const Collective& c) {
  const ProgramTensor& x = *c.made.at(0);
  const std::int64_t other = c.size() - 1 + c.number("by") % c.size() - c.rank + 2 * c.size();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(c.size()), 0);
  counts[static_cast<std::size_t>(other % c.size())] = elements_of(x);
  return c.bytes_by_counts(x.dtype, counts);
}

std::int64_t exchange(const Collective& c) { return c.bytes_of_boxes(); }

std::int64_t broadcast(const Collective& c) {
  const ProgramTensor& x = *c.made.at(0);
  return c.bytes(CallKind::broadcast, x.dtype, elements_of(x), {.total = elements_of(x)},
                 c.number("root"));
}

std::int64_t send(const Collective& /*c*/) { return 0; }

std::int64_t receive(const Collective& c) {
  const ProgramTensor& x = *c.made.at(0);
  return c.bytes(CallKind::receive, x.dtype, elements_of(x), {});
}

using Bytes = std::int64_t (*)(const Collective&);

/// By the names of operators, without "_async".
const std::map<std::string_view, Bytes>& forms() {
  static const std::map<std::string_view, Bytes> all = {{"all_gather", all_gather},
                                                        {"all_gather_into", all_gather},
                                                        {"all_reduce", all_reduce},
                                                        {"all_reduce_", all_reduce},
                                                        {"all_reduce_coalesced_", all_reduce},
                                                        {"all_to_all", all_to_all},
                                                        {"all_to_all_rows", all_to_all_rows},
                                                        {"broadcast", broadcast},
                                                        {"exchange", exchange},
                                                        {"exchange_messages", exchange},
                                                        {"mirror", mirror},
                                                        {"receive_", receive},
                                                        {"reduce_scatter", reduce_scatter},
                                                        {"reduce_scatter_into", reduce_scatter},
                                                        {"send", send},
                                                        {"shift", shift}};
  return all;
}

/// Of an operator that is not in the table (a plugin's), by what it declares.
std::int64_t by_declaration(const Collective& c, Communicates kind) {
  switch (kind) {
    case Communicates::all_reduce:
      return all_reduce(c);
    case Communicates::all_gather:
      return all_gather(c);
    case Communicates::reduce_scatter:
      return reduce_scatter(c);
    default:
      break;
  }
  std::int64_t bytes = 0;
  for (const ProgramTensor* const x : c.made) {
    bytes += elements_of(*x) * static_cast<std::int64_t>(size_of(x->dtype));
  }
  return kind == Communicates::all_to_all ? bytes * (c.size() - 1) / c.size() : bytes;
}

}  // namespace

std::int64_t received_bytes(const Program& program, const Instruction& i) {
  if (group_of(i) == nullptr) {
    return 0;
  }
  const Collective c(program, i);
  std::string_view name = i.op->name;
  constexpr std::string_view async = "_async";
  name.remove_suffix(name.ends_with(async) ? async.size() : 0);
  const auto form = forms().find(name);
  return form == forms().end() ? by_declaration(c, i.op->communicates) : form->second(c);
}

}  // namespace tessera::graph
