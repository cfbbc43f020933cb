// Lines in order: tiles of a line are sorted by one block each, then runs are merged in pairs. An
// entry has its place in the line, so no two are equal, and there is one result.
#include "kernels/order.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// An element's bits, whatever they are.
__device__ void move_element(void* to, std::int64_t at, const void* from, std::int64_t from_at,
                             int bytes) {
  switch (bytes) {
    case 8:
      static_cast<std::uint64_t*>(to)[at] = static_cast<const std::uint64_t*>(from)[from_at];
      break;
    case 4:
      static_cast<std::uint32_t*>(to)[at] = static_cast<const std::uint32_t*>(from)[from_at];
      break;
    case 2:
      static_cast<std::uint16_t*>(to)[at] = static_cast<const std::uint16_t*>(from)[from_at];
      break;
    default:
      static_cast<std::uint8_t*>(to)[at] = static_cast<const std::uint8_t*>(from)[from_at];
  }
}

/// Entry number `i` of a line, in order.
__device__ void put(const SortArguments& a, std::int64_t line, std::int64_t i,
                    const SortedEntry& entry) {
  if (a.to != nullptr) {
    a.to[line * a.rows.length + i] = entry;
  } else if (i < a.count) {
    const Row<std::int64_t> x(a.rows, 0, line), values(a.rows, 1, line), places(a.rows, 2, line);
    move_element(values.array.data, values.at(i), x.array.data, x.at(entry.place), a.bytes);
    places.set(i, entry.place);
  }
}

}  // namespace

extern "C" {

/// A block sorts a tile of a line, by a bitonic network.
__global__ void sort_tiles(const SortArguments a) {
  __shared__ SortedEntry entries[sorted_tile];
  const std::int64_t length = a.rows.length;
  const std::int64_t tiles = (length + sorted_tile - 1) / sorted_tile;
  for (std::int64_t work = blockIdx.x; work < a.rows.rows * tiles; work += gridDim.x) {
    const std::int64_t line = work / tiles, first = work % tiles * sorted_tile;
    const std::int64_t left = length - first;
    const int count = left < sorted_tile ? static_cast<int>(left) : sorted_tile;
    int size = 2;
    while (size < count) size *= 2;
    const Row<float> x(a.rows, 0, line);
    for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x)) {
      const std::uint64_t key =
          i < count ? key_at(x.array.data, x.array.type, x.at(first + i)) : ~std::uint64_t{0};
      entries[i].key = a.descending && i < count ? ~key : key;
      entries[i].place = first + i;  // what fills up comes after everything
    }
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
      for (int apart = run / 2; apart > 0; apart /= 2) {
        for (int pair = static_cast<int>(threadIdx.x); pair < size / 2;
             pair += static_cast<int>(blockDim.x)) {
          const int i = 2 * pair - pair % apart, j = i + apart;
          const SortedEntry low = entries[i], high = entries[j];
          if (before(high, low) == ((i & run) == 0)) {
            entries[i] = high;
            entries[j] = low;
          }
        }
        __syncthreads();
      }
    }
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      put(a, line, first + i, entries[i]);
    }
    __syncthreads();
  }
}

/// Joins pairs of runs: an entry's place is the number of entries before it in both.
__global__ void merge_runs(const SortArguments a) {
  const std::int64_t length = a.rows.length;
  for (std::int64_t i = thread_place(); i < a.rows.rows * length; i += thread_count()) {
    const std::int64_t line = i / length, at = i % length;
    const SortedEntry* const entries = a.from + line * length;
    const std::int64_t own = at / a.run * a.run, pair = at / (2 * a.run) * (2 * a.run);
    const std::int64_t other = own == pair ? own + a.run : pair;
    const std::int64_t begin = other < length ? other : length;
    const std::int64_t end = other + a.run < length ? other + a.run : length;
    const std::int64_t ahead = entries_before(entries + begin, end - begin, entries[at]);
    put(a, line, pair + at - own + ahead, entries[at]);
  }
}

}  // extern "C"
