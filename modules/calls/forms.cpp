// All kinds of calls. A new one is a row here and an enumerator (docs/design/collectives.md).
module;
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>
module tessera.calls;

import tessera.base;
import :call;
import :forms;
import :segments;

namespace tessera::collective {
namespace {

/// Elements of a member's piece of a segment.
std::int64_t piece_of(const Segment& segment, int member) {
  return std::clamp<std::int64_t>(segment.total - segment.chunk * member, 0, segment.chunk);
}

// The reads of each kind. A row is `call.count` elements.

Read whole_row(const ReadRequest& p) { return {0, p.call.count, 0}; }
Read row_of_member(const ReadRequest& p) { return {0, p.call.count, p.call.count * p.member}; }
Read row_of_reader(const ReadRequest& p) { return {p.call.count * p.reader, p.call.count, 0}; }
Read rows_crossed(const ReadRequest& p) {
  return {p.call.count * p.reader, p.call.count, p.call.count * p.member};
}

/// Only the root reads, or is read.
template <Read (*Of)(const ReadRequest&)>
Read by_root(const ReadRequest& p) {
  return p.reader == p.call.root ? Of(p) : Read{};
}
template <Read (*Of)(const ReadRequest&)>
Read from_root(const ReadRequest& p) {
  return p.member == p.call.root ? Of(p) : Read{};
}

/// Reads the row of the member that is `root` places before the reader, around the end of the
/// group.
Read row_of_predecessor(const ReadRequest& p) {
  return (p.member + p.call.root) % p.size == p.reader ? whole_row(p) : Read{};
}

/// A rank's piece of what is reduced in two phases, and where it is in both.
Read piece(const ReadRequest& p, int rank) {
  const std::size_t element = size_of(p.call.dtype);
  const std::int64_t begin = piece_begin(p.array.total, element, p.size, rank);
  return {begin, piece_begin(p.array.total, element, p.size, rank + 1) - begin, begin};
}
Read piece_of_reader(const ReadRequest& p) { return piece(p, p.reader); }
Read piece_of_member(const ReadRequest& p) { return piece(p, p.member); }

Read segment_of_member(const ReadRequest& p) {
  return {0, piece_of(p.array, p.member), p.array.chunk * p.member};
}
Read segment_of_reader(const ReadRequest& p) {
  return {p.array.chunk * p.reader, piece_of(p.array, p.reader), 0};
}

Read counted(const ReadRequest& p) {
  const auto reader = static_cast<std::size_t>(p.reader);
  const auto member = static_cast<std::size_t>(p.member);
  Read read;
  if (p.send_begins != nullptr) {
    read.from = p.send_begins[reader];
    read.count = p.send_begins[reader + 1] - read.from;
  }
  if (p.receive_begins != nullptr) {
    read.to = p.receive_begins[member];
    read.count = p.receive_begins[member + 1] - read.to;
  }
  return read;
}

constexpr CallForm forms[] = {
    {.kind = CallKind::barrier, .name = "barrier"},
    {.kind = CallKind::all_reduce,
     .name = "all_reduce",
     .read = piece_of_reader,
     .combine = Combine::reduce,
     .gather = piece_of_member,
     .at_once = whole_row},
    {.kind = CallKind::all_gather,
     .name = "all_gather",
     .read = row_of_member,
     .for_all = true,
     .joins = true},
    {.kind = CallKind::reduce_scatter,
     .name = "reduce_scatter",
     .read = row_of_reader,
     .combine = Combine::reduce,
     .divides = true},
    {.kind = CallKind::all_to_all,
     .name = "all_to_all",
     .read = rows_crossed,
     .divides = true,
     .joins = true},
    {.kind = CallKind::all_to_all_counts,
     .name = "all_to_all with counts",
     .variant_of = CallKind::all_to_all,
     .read = counted,
     .divides = true,
     .joins = true,
     .counts = true},
    {.kind = CallKind::broadcast,
     .name = "broadcast",
     .read = from_root<whole_row>,
     .root_name = "root",
     .for_all = true},
    {.kind = CallKind::scatter,
     .name = "scatter",
     .read = from_root<row_of_reader>,
     .root_name = "root",
     .divides = true},
    {.kind = CallKind::scatter_counts,
     .name = "scatter with counts",
     .variant_of = CallKind::scatter,
     .read = counted,
     .root_name = "root",
     .divides = true,
     .counts = true},
    {.kind = CallKind::gather,
     .name = "gather",
     .read = by_root<row_of_member>,
     .root_name = "root",
     .joins = true},
    {.kind = CallKind::reduce,
     .name = "reduce",
     .read = by_root<whole_row>,
     .combine = Combine::reduce,
     .root_name = "root"},
    {.kind = CallKind::shift,
     .name = "shift",
     .variant_of = CallKind::all_to_all,
     .read = row_of_predecessor,
     .root_name = "by"},
    {.kind = CallKind::all_gather_segments,
     .name = "all_gather of segments",
     .variant_of = CallKind::all_gather,
     .read = segment_of_member,
     .for_all = true,
     .joins = true,
     .list = true},
    {.kind = CallKind::reduce_scatter_segments,
     .name = "reduce_scatter of segments",
     .variant_of = CallKind::reduce_scatter,
     .read = segment_of_reader,
     .combine = Combine::reduce,
     .divides = true,
     .list = true},
    {.kind = CallKind::all_reduce_segments,
     .name = "all_reduce of segments",
     .variant_of = CallKind::all_reduce,
     .read = piece_of_reader,
     .combine = Combine::reduce,
     .list = true,
     .gather = piece_of_member},
    {.kind = CallKind::send,
     .name = "send",
     .variant_of = CallKind::all_to_all,
     .root_name = "root"},
    {.kind = CallKind::receive,
     .name = "receive",
     .variant_of = CallKind::all_to_all,
     .root_name = "root"},
};

consteval bool in_order() {
  for (std::size_t i = 0; i < std::size(forms); ++i) {
    if (forms[i].kind != static_cast<CallKind>(i)) {
      return false;
    }
  }
  return true;
}
static_assert(in_order(), "the forms have the order of the enumeration");

}  // namespace

const CallForm& form_of(CallKind kind) { return forms[static_cast<std::size_t>(kind)]; }

CallKind base_of(CallKind kind) { return form_of(kind).variant_of.value_or(kind); }

const CallForm* list_form_of(CallKind base) {
  const auto* const found = std::ranges::find_if(
      forms, [&](const CallForm& form) { return form.list && form.variant_of == base; });
  return found == std::end(forms) ? nullptr : found;
}

std::string_view name_of(CallKind kind) { return form_of(kind).name; }

std::int64_t piece_begin(std::int64_t count, std::size_t element, int size, int rank) {
  const auto line = static_cast<std::int64_t>(64 / element);
  const std::int64_t length = ((count + size - 1) / size + line - 1) / line * line;
  return std::min(count, length * rank);
}

std::int64_t received_bytes(const Call& call, std::span<const Segment> arrays, int rank, int size,
                            const std::int64_t* receive_begins) {
  const CallForm& form = form_of(call.kind);
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (call.kind == CallKind::receive) {
    return call.count * element;
  }
  std::int64_t elements = 0;
  for (const Segment& array : arrays) {
    for (int member = 0; form.read != nullptr && member < size; ++member) {
      const ReadRequest pair{call, array, size, rank, member, nullptr, receive_begins};
      if (form.gather != nullptr) {
        elements += form.gather(pair).count;
      } else if (member != rank) {
        elements += form.read(pair).count;
      }
    }
  }
  // Each element is reduced on one rank and gathered by the others: size - 1 reads in each phase.
  return form.gather != nullptr ? 2 * (size - 1) * elements * element / size : elements * element;
}

std::int64_t received_bytes(CallKind kind, std::int64_t count, DType dtype, int rank, int size) {
  const Segment array{.chunk = count, .total = count};
  return received_bytes({.kind = kind, .dtype = dtype, .count = count}, {&array, 1}, rank, size,
                        nullptr);
}

std::vector<std::int64_t> even_counts(std::int64_t elements, int size) {
  std::vector<std::int64_t> counts;
  for (std::int64_t member = 0; member < size; ++member) {
    counts.push_back(elements * (member + 1) / size - elements * member / size);
  }
  return counts;
}

std::int64_t received_bytes(DType dtype, std::span<const std::int64_t> counts, int rank) {
  std::vector<std::int64_t> begins{0};
  for (const std::int64_t count : counts) {
    begins.push_back(begins.back() + count);
  }
  const Segment array{.total = begins.back()};
  return received_bytes({.kind = CallKind::all_to_all_counts, .dtype = dtype}, {&array, 1}, rank,
                        static_cast<int>(counts.size()), begins.data());
}

double share_between(CallKind kind, const GroupSpread& spread) {
  const CallForm& form = form_of(base_of(kind));
  const double others = spread.ranks - 1;
  return form.divides && form.joins ? (spread.ranks - spread.together) / others
                                    : (spread.machines - 1) / others;
}

int rounds_of(int members) {
  return members < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<unsigned>(members - 1)));
}

}  // namespace tessera::collective
