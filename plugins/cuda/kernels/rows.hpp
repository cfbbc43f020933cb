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

/// Columns that a block of each_column has, and the groups of threads that share their rows.
inline constexpr unsigned columns_of_block = 32;
inline constexpr unsigned row_groups = 8;

/// Sums over rows: done(column, sum of term(row, column)) for each element of a row, where
/// arguments.rows is what is summed over. A block has 256 threads.
template <class C, class Term, class Done>
__device__ void each_column(const RowArguments& a, Term term, Done done) {
  __shared__ C partial[row_groups][columns_of_block];
  const unsigned lane = threadIdx.x % columns_of_block, group = threadIdx.x / columns_of_block;
  for (std::int64_t first = std::int64_t{blockIdx.x} * columns_of_block; first < a.length;
       first += std::int64_t{gridDim.x} * columns_of_block) {
    const std::int64_t column = first + lane;
    C sum = {};
    if (column < a.length) {
      for (std::int64_t row = group; row < a.rows; row += row_groups) sum += term(row, column);
    }
    partial[group][lane] = sum;
    __syncthreads();
    if (group == 0 && column < a.length) {
      for (unsigned other = 1; other < row_groups; ++other) sum += partial[other][lane];
      done(column, sum);
    }
    __syncthreads();
  }
}

}  // namespace tessera::cuda
