// Copies, casts and fills: strided on both sides, and broadcast. There is a kernel for each kind of
// number that holds all values of the operand's type.
#include "kernels/elements.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

template <class C>
__device__ void copy_elements(const ElementArguments& a) {
  const StridedArray& x = a.operands[0];
  each_element(a.count, [&](std::int64_t i) {
    store(a.result.data, a.result.type, offset_of(a, a.result, i),
          load<C>(x.data, x.type, offset_of(a, x, i)));
  });
}

/// Moves bits, whatever they are.
template <class Word>
__device__ void move_words(const ElementArguments& a) {
  const StridedArray& x = a.operands[0];
  each_element(a.count, [&](std::int64_t i) {
    static_cast<Word*>(a.result.data)[offset_of(a, a.result, i)] =
        static_cast<const Word*>(x.data)[offset_of(a, x, i)];
  });
}

}  // namespace

extern "C" {

__global__ void cast_from_float(const ElementArguments a) { copy_elements<float>(a); }
__global__ void cast_from_double(const ElementArguments a) { copy_elements<double>(a); }
__global__ void cast_from_integer(const ElementArguments a) { copy_elements<std::int64_t>(a); }

__global__ void move_1(const ElementArguments a) { move_words<std::uint8_t>(a); }
__global__ void move_2(const ElementArguments a) { move_words<std::uint16_t>(a); }
__global__ void move_4(const ElementArguments a) { move_words<std::uint32_t>(a); }
__global__ void move_8(const ElementArguments a) { move_words<std::uint64_t>(a); }

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
