// The kernel of a function of elements (modules/ops/pointwise/functions). The function itself is
// the CPU's; here is only the way through the elements.
#pragma once
#include <cstdint>
#include <tessera/math.hpp>
#include <utility>

#include "kernels/arguments.hpp"
#include "kernels/math.hpp"
#include "kernels/memory.hpp"
#include "kernels/pieces.hpp"

namespace tessera::cuda {

/// Where element number `i` of a call's shape is in an array.
inline __device__ std::int64_t offset_of(const ElementArguments& a, const StridedArray& x,
                                         std::int64_t i) {
  if (x.contiguous) return i;
  if (a.dims == 1) return i * x.strides[0];
  std::int64_t offset = 0;
  for (int dim = a.dims - 1; dim >= 0; --dim) {
    const std::int64_t extent = a.extents[dim];
    offset += i % extent * x.strides[dim];
    i /= extent;
  }
  return offset;
}

/// Calls body(i) for the elements that this thread computes.
template <class Body>
__device__ void each_element(std::int64_t count, Body body) {
  for (std::int64_t i = thread_place(); i < count; i += thread_count()) body(i);
}

/// A piece of an array of 1, 2 or 4 bytes an element, as it lies in memory; or one element.
struct AnyPiece {
  std::uint32_t word[elements_of_pieces];
};
template <class T>
using PieceOf = Piece<T, elements_of_pieces>;

/// The place of a piece's first element. What is not contiguous is a call, as operand_at is.
inline __device__ __noinline__ std::int64_t strided_offset(const ElementArguments& a,
                                                           const StridedArray& x, std::int64_t i) {
  return offset_of(a, x, i);
}
inline __device__ std::int64_t piece_offset(const ElementArguments& a, const StridedArray& x,
                                            std::int64_t piece) {
  const std::int64_t i = piece * elements_of_pieces;
  return x.contiguous ? i : strided_offset(a, x, i);
}

/// An operand in pieces.
struct PieceOperand {
  const ElementArguments& a;
  const StridedArray& x;
  bool one;  // all elements of a piece are the same one

  __device__ PieceOperand(const ElementArguments& arguments, const StridedArray& operand)
      : a(arguments), x(operand), one(!x.contiguous && x.strides[a.dims - 1] == 0) {}

  __device__ AnyPiece read(std::int64_t piece) const {
    const std::int64_t at = piece_offset(a, x, piece);
    AnyPiece found = {};
    if (x.type == DType::f32) {
      read_as<float>(at, found);
    } else if (x.type == DType::bf16) {
      read_as<BFloat16>(at, found);
    } else {
      read_as<bool>(at, found);
    }
    return found;
  }

  __device__ void unpack(const AnyPiece& found, float (&to)[elements_of_pieces]) const {
    if (x.type == DType::f32) {
      unpack_as<float>(found, to);
    } else if (x.type == DType::bf16) {
      unpack_as<BFloat16>(found, to);
    } else {
      unpack_as<bool>(found, to);
    }
    if (one) {
#pragma unroll
      for (float& value : to) value = to[0];
    }
  }

 private:
  template <class T>
  __device__ void read_as(std::int64_t at, AnyPiece& found) const {
    if (one) {
      found.word[0] = static_cast<const MovedBits<sizeof(T)>*>(x.data)[at];
      return;
    }
    const auto piece = load_piece<T, elements_of_pieces>(x.data, at);
    int k = 0;
#pragma unroll
    for (const std::uint32_t word : piece.words) found.word[k++] = word;
  }

  template <class T>
  static __device__ void unpack_as(const AnyPiece& found, float (&to)[elements_of_pieces]) {
    PieceOf<T> piece;
    int k = 0;
#pragma unroll
    for (std::uint32_t& word : piece.words) word = found.word[k++];
    cuda::unpack(piece, to);
  }
};

/// `truth`: the result is bool; otherwise f32 or bf16.
template <bool truth>
__device__ void write_piece(const ElementArguments& a, std::int64_t piece,
                            const float (&from)[elements_of_pieces]) {
  const StridedArray& y = a.result;
  const std::int64_t at = piece_offset(a, y, piece);
  if constexpr (truth) {
    store_piece(y.data, at, pack<bool>(from));
  } else if (y.type == DType::f32) {
    store_piece(y.data, at, pack<float>(from));
  } else {
    store_piece(y.data, at, pack<BFloat16>(from));
  }
}

template <class F, class... T>
__device__ auto value_of(T... arguments) {
  if constexpr (F::is_truth) {
    return static_cast<bool>(F::holds(arguments...));
  } else {
    return F::value(arguments...);
  }
}

/// Element number `i` of an operand of any type and layout. It is a call: as a part of each kernel
/// it would make compiling them ten times as long.
template <class C>
__device__ __noinline__ C operand_at(const ElementArguments& a, const StridedArray& x,
                                     std::int64_t i) {
  return load<C>(x.data, x.type, offset_of(a, x, i));
}

/// Writes element number `i` of the result, of any type and layout.
template <class C>
__device__ __noinline__ void write_result(const ElementArguments& a, std::int64_t i, C value) {
  store(a.result.data, a.result.type, offset_of(a, a.result, i), value);
}

/// With elements computed as C, from number `first` on.
template <class F, class C, std::size_t... n, std::size_t... m>
__device__ void compute(const ElementArguments& a, std::int64_t first, std::index_sequence<n...>,
                        std::index_sequence<m...>) {
#pragma unroll 1
  for (std::int64_t i = first + thread_place(); i < a.count; i += thread_count()) {
    write_result(a, i,
                 value_of<F>(operand_at<C>(a, a.operands[n], i)..., convert<C>(a.numbers[m])...));
  }
}

/// In pieces, computed as float. All operands of a round are loaded before one is converted. The
/// number of elements in pieces.
template <class F, std::size_t... n, std::size_t... m>
__device__ std::int64_t compute_pieces(const ElementArguments& a, std::index_sequence<n...>,
                                       std::index_sequence<m...>) {
  constexpr int size = elements_of_pieces, operands = sizeof...(n);
  constexpr int rounds = operands == 1 ? 2 : 1;  // at once
  const std::int64_t pieces = a.count / size;
  const PieceOperand in[] = {PieceOperand(a, a.operands[n])...};
  for (std::int64_t i = thread_place(); i < pieces; i += rounds * thread_count()) {
    AnyPiece read[rounds][operands];
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      const std::int64_t piece = i + r * thread_count();
      if (piece < pieces) ((read[r][n] = in[n].read(piece)), ...);
    }
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      const std::int64_t piece = i + r * thread_count();
      if (piece >= pieces) break;
      float x[operands][size], y[size];
      (in[n].unpack(read[r][n], x[n]), ...);
#pragma unroll
      for (int k = 0; k < size; ++k) {
        y[k] = static_cast<float>(value_of<F>(x[n][k]..., convert<float>(a.numbers[m])...));
      }
      write_piece<F::is_truth>(a, piece, y);
    }
  }
  return pieces * size;
}

/// For floating types that are computed in float.
template <class F, int operands, int numbers>
__device__ void compute_f32(const ElementArguments& a) {
  if constexpr (F::takes != functions::Takes::bits) {
    constexpr std::make_index_sequence<operands> n;
    constexpr std::make_index_sequence<numbers> m;
    const bool pieces = a.in_pieces && F::is_truth == (a.result.type == DType::boolean);
    compute<F, float>(a, pieces ? compute_pieces<F>(a, n, m) : 0, n, m);
  }
}

template <class F, class C, int operands, int numbers>
__device__ void compute_as(const ElementArguments& a) {
  compute<F, C>(a, 0, std::make_index_sequence<operands>{}, std::make_index_sequence<numbers>{});
}

/// If elements of T are computed as such, and the call computes in T.
template <class F, int operands, int numbers, class T>
__device__ void compute_if(const ElementArguments& a) {
  using functions::Takes;
  constexpr bool floating = std::is_floating_point_v<T>;
  constexpr bool boolean = std::is_same_v<T, bool>;
  constexpr bool taken = floating  ? F::takes != Takes::bits
                         : boolean ? F::takes == Takes::everything || F::takes == Takes::bits
                                   : F::takes != Takes::floating;
  if constexpr (taken && !kernels::kNarrow<T> && !std::is_same_v<T, float>) {
    if (a.computed == kernels::dtype_of<T>) compute_as<F, T, operands, numbers>(a);
  }
}

template <class F, int operands, int numbers, class... T>
__device__ void compute_one_of(const ElementArguments& a, kernels::Types<T...>) {
  (compute_if<F, operands, numbers, T>(a), ...);
}

/// For the other types.
template <class F, int operands, int numbers>
__device__ void compute_others(const ElementArguments& a) {
  compute_one_of<F, operands, numbers>(a, kernels::AllTypes{});
}

}  // namespace tessera::cuda
