// Entries of sorted lines, in a device's memory.
#pragma once
#include "kernels/memory.hpp"
#include "kernels/sort.hpp"
#include "sort/functions/order.hpp"

namespace tessera::cuda {

inline __device__ bool before(const SortedEntry& a, const SortedEntry& b) {
  return a.key != b.key ? a.key < b.key : a.place < b.place;
}

/// The key of an index, whatever its type.
inline __device__ std::uint64_t key_of_index(std::int64_t index) {
  return functions::key_of(index);
}

inline __device__ std::int64_t index_of_key(std::uint64_t key) {
  return static_cast<std::int64_t>(key ^ key_of_index(0));
}

/// The key of an element.
inline __device__ std::uint64_t key_at(const void* data, DType type, std::int64_t at) {
  switch (type) {
    case DType::f64:
      return functions::key_of(element<double, double>(data, at));
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return functions::key_of(load<float>(data, type, at));
    default:
      return key_of_index(load<std::int64_t>(data, type, at));
  }
}

/// How many of `count` entries in order are before the limit.
inline __device__ std::int64_t entries_before(const SortedEntry* entries, std::int64_t count,
                                              const SortedEntry& limit) {
  std::int64_t first = 0;
  while (count > 0) {
    const std::int64_t half = count / 2;
    const bool is_before = before(entries[first + half], limit);
    first = is_before ? first + half + 1 : first;
    count = is_before ? count - half - 1 : half;
  }
  return first;
}

}  // namespace tessera::cuda
