// The gradients of silu(gate) up, both from one read.
#include "kernels/row_pieces.hpp"
#include "kernels/rows.hpp"
#include "pointwise/functions/unary.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

template <class C>
struct Gradients {
  C gate, up;
};
template <class C>
__device__ Gradients<C> gradients_of(C dy, C gate, C up) {
  return {dy * up * functions::Silu::slope(gate), dy * functions::Silu::value(gate)};
}

// Arrays: dy, gate, up, dgate, dup.

template <class C>
__device__ void run_in_memory(const RowArguments& a) {
  for (std::int64_t work = thread_place(); work < a.rows * a.length; work += thread_count()) {
    const std::int64_t row = work / a.length, i = work % a.length;
    const Gradients<C> d =
        gradients_of(Row<C>(a, 0, row).get(i), Row<C>(a, 1, row).get(i), Row<C>(a, 2, row).get(i));
    Row<C>(a, 3, row).set(i, d.gate);
    Row<C>(a, 4, row).set(i, d.up);
  }
}

/// Of T, in whole pieces of 16 bytes.
template <class T>
__device__ void run_in_pieces(const RowArguments& a) {
  constexpr int width = Piece<T>::elements;
  const auto across = static_cast<unsigned>(a.length / width);
  const auto count = static_cast<unsigned>(a.rows) * across;
  for (auto work = static_cast<unsigned>(thread_place()); work < count;
       work += static_cast<unsigned>(thread_count())) {
    const std::int64_t row = work / across, i = std::int64_t{work % across} * width;
    const auto dy = load_piece<T>(row_of<T>(a, 0, row) + i);
    const auto gate = load_piece<T>(row_of<T>(a, 1, row) + i);
    const auto up = load_piece<T>(row_of<T>(a, 2, row) + i);
    float dgate[width], dup[width];
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const Gradients<float> d = gradients_of(dy.get(k), gate.get(k), up.get(k));
      dgate[k] = d.gate;
      dup[k] = d.up;
    }
    store_piece<T>(row_of<T>(a, 3, row) + i, dgate);
    store_piece<T>(row_of<T>(a, 4, row) + i, dup);
  }
}

}  // namespace

extern "C" {

__global__ void swiglu_backward_f32(const RowArguments a) { run_in_memory<float>(a); }
__global__ void swiglu_backward_f64(const RowArguments a) { run_in_memory<double>(a); }
__global__ void swiglu_backward_pieces_f32(const RowArguments a) { run_in_pieces<float>(a); }
__global__ void swiglu_backward_pieces_bf16(const RowArguments a) { run_in_pieces<BFloat16>(a); }
__global__ void swiglu_backward_pieces_f16(const RowArguments a) { run_in_pieces<Half>(a); }

}  // extern "C"
