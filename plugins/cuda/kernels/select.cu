// Elements chosen by indices, and the sums of those that have one index. Indices are looked at
// before (index.cu): what is out of range is skipped.
#include "kernels/elements.hpp"
#include "kernels/order.hpp"
#include "kernels/rows.hpp"
#include "kernels/select.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Moves bits, whatever they are.
template <class Word>
__device__ void take(const TakeArguments& a) {
  const ElementArguments& e = a.elements;
  const StridedArray& indices = e.operands[1];
  const auto move = [&](auto offset) {
    const auto index = load<std::int64_t>(indices.data, indices.type, offset(indices));
    if (index < 0 || index >= a.extent) return;
    static_cast<Word*>(e.result.data)[offset(e.result)] =
        static_cast<const Word*>(e.operands[0].data)[offset(e.operands[0]) + index * a.step];
  };
  if (e.dims == 2 && e.count <= std::int64_t{1} << 31) {  // rows: one division of 32 bits
    const auto columns = static_cast<std::uint32_t>(e.extents[1]);
    each_element(e.count, [&](std::int64_t i) {
      const std::uint32_t row = static_cast<std::uint32_t>(i) / columns;
      const std::uint32_t column = static_cast<std::uint32_t>(i) - row * columns;
      move([&](const StridedArray& x) { return row * x.strides[0] + column * x.strides[1]; });
    });
  } else {
    each_element(e.count, [&](std::int64_t i) {
      move([&](const StridedArray& x) { return offset_of(e, x, i); });
    });
  }
}

/// Terms are added in the order of their indices' places, so the bits are always the same.
template <class C>
__device__ void sum_by_index(const IndexedSumArguments& a) {
  each_element(a.count, [&](std::int64_t i) {
    std::int64_t to = 0, of_base = 0, from = 0, line = 0, wanted = 0, rest = i;
    bool reached = true;
    for (int d = a.dims - 1; d >= 0; --d) {
      const std::int64_t place = rest % a.extents[d];
      rest /= a.extents[d];
      to += place * a.y.strides[d];
      of_base += place * a.base.strides[d];
      line += place * a.lines[d];
      if (d == a.dim) {
        wanted = place + a.first;
      } else {
        from += place * a.source.strides[d];
        reached = reached && place < a.reached[d];
      }
    }
    C sum = a.base.data == nullptr ? C{} : load<C>(a.base.data, a.base.type, of_base);
    if (reached) {
      const SortedEntry* const entries = a.entries + line * a.entries_of_line;
      const SortedEntry first = {key_of_index(wanted), 0};
      for (std::int64_t n = entries_before(entries, a.entries_of_line, first);
           n < a.entries_of_line && entries[n].key == first.key; ++n) {
        sum += load<C>(
            a.source.data, a.source.type,
            from + offset_in(a.place_dims, a.place_extents, a.place_strides, entries[n].place));
      }
    }
    store(a.y.data, a.y.type, to, sum);
  });
}

/// Of a matrix y, only the rows that are indices: the thread of the first entry of an index adds
/// all of that index, in a column.
template <class C>
__device__ void add_rows_by_index(const IndexedSumArguments& a) {
  const std::int64_t width = a.extents[1];
  each_element(a.entries_of_line * width, [&](std::int64_t i) {
    const std::int64_t column = i % width, first = i / width;
    const std::uint64_t key = a.entries[first].key;
    const std::int64_t row = index_of_key(key) - a.first;
    if ((first > 0 && a.entries[first - 1].key == key) || row < 0 || row >= a.extents[0]) return;
    const std::int64_t at = row * a.y.strides[0] + column * a.y.strides[1];
    C sum = load<C>(a.y.data, a.y.type, at);
    for (std::int64_t n = first; n < a.entries_of_line && a.entries[n].key == key; ++n) {
      sum += load<C>(a.source.data, a.source.type,
                     column * a.source.strides[1] + offset_in(a.place_dims, a.place_extents,
                                                              a.place_strides, a.entries[n].place));
    }
    store(a.y.data, a.y.type, at, sum);
  });
}

}  // namespace

extern "C" {

__global__ void take_1(const TakeArguments a) { take<std::uint8_t>(a); }
__global__ void take_2(const TakeArguments a) { take<std::uint16_t>(a); }
__global__ void take_4(const TakeArguments a) { take<std::uint32_t>(a); }
__global__ void take_8(const TakeArguments a) { take<std::uint64_t>(a); }
/// Rows in pieces of 16 bytes.
__global__ void take_16(const TakeArguments a) { take<uint4>(a); }

__global__ void sum_by_index_f32(const IndexedSumArguments a) { sum_by_index<float>(a); }
__global__ void sum_by_index_f64(const IndexedSumArguments a) { sum_by_index<double>(a); }
__global__ void sum_by_index_i64(const IndexedSumArguments a) { sum_by_index<std::int64_t>(a); }

__global__ void add_rows_by_index_f32(const IndexedSumArguments a) { add_rows_by_index<float>(a); }
__global__ void add_rows_by_index_f64(const IndexedSumArguments a) { add_rows_by_index<double>(a); }

}  // extern "C"
