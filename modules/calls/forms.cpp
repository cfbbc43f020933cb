// All kinds of calls. A new one is a row here, an enumerator and a function of Communicator.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
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

Read whole_row(const Pair& p) { return {0, p.call.count, 0}; }
Read row_of_member(const Pair& p) { return {0, p.call.count, p.call.count * p.member}; }
Read row_of_reader(const Pair& p) { return {p.call.count * p.reader, p.call.count, 0}; }
Read rows_crossed(const Pair& p) {
  return {p.call.count * p.reader, p.call.count, p.call.count * p.member};
}

/// Only the root reads, or is read.
template <Read (*Of)(const Pair&)>
Read by_root(const Pair& p) {
  return p.reader == p.call.root ? Of(p) : Read{};
}
template <Read (*Of)(const Pair&)>
Read from_root(const Pair& p) {
  return p.member == p.call.root ? Of(p) : Read{};
}

/// Reads the row of the member that is `root` places before the reader, around the end of the
/// group.
Read row_of_predecessor(const Pair& p) {
  return (p.member + p.call.root) % p.size == p.reader ? whole_row(p) : Read{};
}

/// A rank's piece of what is reduced in two phases, and where it is in both.
Read piece(const Pair& p, int rank) {
  const std::size_t element = size_of(p.call.dtype);
  const std::int64_t begin = piece_begin(p.array.total, element, p.size, rank);
  return {begin, piece_begin(p.array.total, element, p.size, rank + 1) - begin, begin};
}
Read piece_of_reader(const Pair& p) { return piece(p, p.reader); }
Read piece_of_member(const Pair& p) { return piece(p, p.member); }

Read segment_of_member(const Pair& p) {
  return {0, piece_of(p.array, p.member), p.array.chunk * p.member};
}
Read segment_of_reader(const Pair& p) {
  return {p.array.chunk * p.reader, piece_of(p.array, p.reader), 0};
}

Read counted(const Pair& p) {
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
    {.kind = CallKind::all_gather, .name = "all_gather", .read = row_of_member, .for_all = true},
    {.kind = CallKind::reduce_scatter,
     .name = "reduce_scatter",
     .read = row_of_reader,
     .combine = Combine::reduce},
    {.kind = CallKind::all_to_all, .name = "all_to_all", .read = rows_crossed},
    {.kind = CallKind::all_to_all_counts,
     .name = "all_to_all with counts",
     .read = counted,
     .counts = true},
    {.kind = CallKind::broadcast,
     .name = "broadcast",
     .read = from_root<whole_row>,
     .number = "root",
     .for_all = true},
    {.kind = CallKind::scatter,
     .name = "scatter",
     .read = from_root<row_of_reader>,
     .number = "root"},
    {.kind = CallKind::scatter_counts,
     .name = "scatter with counts",
     .read = counted,
     .number = "root",
     .counts = true},
    {.kind = CallKind::gather, .name = "gather", .read = by_root<row_of_member>, .number = "root"},
    {.kind = CallKind::reduce,
     .name = "reduce",
     .read = by_root<whole_row>,
     .combine = Combine::reduce,
     .number = "root"},
    {.kind = CallKind::shift, .name = "shift", .read = row_of_predecessor, .number = "by"},
    {.kind = CallKind::all_gather_segments,
     .name = "all_gather of segments",
     .read = segment_of_member,
     .for_all = true,
     .list = true},
    {.kind = CallKind::reduce_scatter_segments,
     .name = "reduce_scatter of segments",
     .read = segment_of_reader,
     .combine = Combine::reduce,
     .list = true},
    {.kind = CallKind::all_reduce_segments,
     .name = "all_reduce of segments",
     .read = piece_of_reader,
     .combine = Combine::reduce,
     .list = true,
     .gather = piece_of_member},
    {.kind = CallKind::send, .name = "send", .number = "root"},
    {.kind = CallKind::receive, .name = "receive", .number = "root"},
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
      const Pair pair{call, array, size, rank, member, nullptr, receive_begins};
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

}  // namespace tessera::collective
