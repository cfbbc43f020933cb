// Copies, casts and fills: strided on both sides, and broadcast. There is a kernel for each kind of
// number that holds all values of the operand's type.
#include "kernels/elements.hpp"
#include "pointwise/functions/arithmetic.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

struct Identity : functions::Function {
  template <class T>
  static constexpr T value(T x) {
    return x;
  }
};

/// From element number `first` on.
template <class C>
__device__ void copy_elements(const ElementArguments& a, std::int64_t first = 0) {
  const StridedArray& x = a.operands[0];
#pragma unroll 1
  for (std::int64_t i = first + thread_place(); i < a.count; i += thread_count()) {
    store(a.result.data, a.result.type, offset_of(a, a.result, i),
          load<C>(x.data, x.type, offset_of(a, x, i)));
  }
}

__device__ std::int64_t word_offset(const ElementArguments& a, const StridedArray& x,
                                    std::int64_t i) {
  return x.contiguous ? i : strided_offset(a, x, i);
}

/// Moves bits, whatever they are. Several words are loaded before the first is stored.
template <class Word>
__device__ void move_words(const ElementArguments& a) {
  constexpr int at_once = 4;
  const StridedArray& x = a.operands[0];
  const std::int64_t step = thread_count();
  for (std::int64_t first = thread_place(); first < a.count; first += at_once * step) {
    Word words[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::int64_t i = first + k * step;
      if (i < a.count) words[k] = static_cast<const Word*>(x.data)[word_offset(a, x, i)];
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::int64_t i = first + k * step;
      if (i < a.count) static_cast<Word*>(a.result.data)[word_offset(a, a.result, i)] = words[k];
    }
  }
}

}  // namespace

extern "C" {

__global__ void cast_from_float(const __grid_constant__ ElementArguments a) {
  const bool pieces = a.in_pieces && a.result.type != DType::boolean;
  copy_elements<float>(
      a,
      pieces ? compute_pieces<Identity>(a, std::index_sequence<0>{}, std::index_sequence<>{}) : 0);
}
__global__ void cast_from_double(const ElementArguments a) { copy_elements<double>(a); }
__global__ void cast_from_integer(const ElementArguments a) { copy_elements<std::int64_t>(a); }

__global__ void move_1(const __grid_constant__ ElementArguments a) { move_words<std::uint8_t>(a); }
__global__ void move_2(const __grid_constant__ ElementArguments a) { move_words<std::uint16_t>(a); }
__global__ void move_4(const __grid_constant__ ElementArguments a) { move_words<std::uint32_t>(a); }
__global__ void move_8(const __grid_constant__ ElementArguments a) { move_words<std::uint64_t>(a); }
__global__ void move_16(const __grid_constant__ ElementArguments a) { move_words<uint4>(a); }

__global__ void fill_words(const FillArguments a) {
  each_element(a.count, [&](std::int64_t i) { static_cast<std::uint64_t*>(a.to)[i] = a.word; });
}

/// One number, numbers[0], everywhere.
__global__ void fill_elements(const ElementArguments a) {
  each_element(a.count, [&](std::int64_t i) {
    store(a.result.data, a.result.type, offset_of(a, a.result, i), a.numbers[0]);
  });
}

}  // extern "C"
