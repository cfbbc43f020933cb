// Ways through rows and columns.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"
#include "kernels/block.hpp"
#include "kernels/math.hpp"
#include "kernels/memory.hpp"

namespace tessera::cuda {

inline __device__ std::int64_t offset_in(int dims, const std::int64_t* extents,
                                         const std::int64_t* strides, std::int64_t i) {
  if (dims == 1) return i * strides[0];
  std::int64_t offset = 0;
  for (int dim = dims - 1; dim >= 0; --dim) {
    offset += i % extents[dim] * strides[dim];
    i /= extents[dim];
  }
  return offset;
}

/// The place of element number i of a part.
inline __device__ std::int64_t place_of(const PartPlaces& places, std::int64_t i) {
  return places.first + offset_in(places.dims, places.extents, places.strides, i);
}

/// One row of an array.
template <class C>
struct Row {
  const RowArguments& a;
  const RowArray& array;
  std::int64_t begin;

  __device__ Row(const RowArguments& arguments, int which, std::int64_t row)
      : a(arguments),
        array(arguments.arrays[which]),
        begin(offset_in(a.kept_dims, a.kept_extents, array.kept, row)) {}

  __device__ bool exists() const { return array.data != nullptr; }
  __device__ std::int64_t at(std::int64_t i) const {
    return begin + offset_in(a.along_dims, a.along_extents, array.along, i);
  }
  __device__ C get(std::int64_t i) const { return load<C>(array.data, array.type, at(i)); }
  __device__ C get_or(std::int64_t i, C otherwise) const { return exists() ? get(i) : otherwise; }
  __device__ void set(std::int64_t i, C value) const {
    store(array.data, array.type, at(i), value);
  }
};

/// Calls body(row) in each thread of the block that the row has.
template <class Body>
__device__ void each_row(const RowArguments& a, Body body) {
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) body(row);
}

/// Calls body(i) for the elements of a row that this thread has.
template <class Body>
__device__ void each_of_row(const RowArguments& a, Body body) {
  for (std::int64_t i = threadIdx.x; i < a.length; i += blockDim.x) body(i);
}

/// The sum of term(i) over a row, in all threads.
template <class C, class Term>
__device__ C row_sum(const RowArguments& a, Term term) {
  C sum = {};
  each_of_row(a, [&](std::int64_t i) { sum += term(i); });
  return sum_block(sum);
}

/// Calls body(begin, end) for the pieces of elements `begin` to `end` that a thread of some has;
/// the last one may be shorter. Sums in this order do not depend on how elements are loaded.
template <class Body>
__device__ void each_piece(std::int64_t begin, std::int64_t end, int piece, unsigned thread,
                           unsigned threads, Body body) {
  for (std::int64_t i = begin + std::int64_t{thread} * piece; i < end;
       i += std::int64_t{threads} * piece) {
    body(i, i + piece < end ? i + piece : end);
  }
}

}  // namespace tessera::cuda
