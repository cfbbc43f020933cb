// Pieces: elements that lie side by side and are moved as one.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/memory.hpp"
#include "kernels/packing.hpp"

namespace tessera::cuda {

template <int bytes>
struct MovedWord {
  using Type = uint4;
};
template <>
struct MovedWord<8> {
  using Type = uint2;
};
template <>
struct MovedWord<4> {
  using Type = std::uint32_t;
};
template <>
struct MovedWord<2> {
  using Type = std::uint16_t;
};
template <>
struct MovedWord<1> {
  using Type = std::uint8_t;
};

template <int bytes>
using MovedBits = typename MovedWord<bytes>::Type;

/// n elements as they lie in memory; by default 16 bytes of them.
template <class T, int n = 16 / static_cast<int>(sizeof(T))>
struct Piece {
  static constexpr int elements = n;
  static constexpr int bytes = n * static_cast<int>(sizeof(T));
  static constexpr int word_bytes = bytes < 16 ? bytes : 16;  // that one instruction moves
  std::uint32_t words[bytes / 4] = {};

  /// Of f32, bf16 or f16. `k` is known to the compiler where the caller's loop is unrolled.
  __device__ float get(int k) const {
    if constexpr (std::is_same_v<T, float>) {
      return __builtin_bit_cast(float, words[k]);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      const std::uint32_t word = words[k / 2];
      return __builtin_bit_cast(float, k % 2 == 0 ? word << 16 : word & 0xffff0000U);
    } else {
      return widened(Half::from_bits(static_cast<std::uint16_t>(words[k / 2] >> (k % 2 * 16))));
    }
  }
};

template <class T, int n>
struct PieceElements {
  T of[n];
};

/// A piece in the words that instructions move.
template <class P>
struct MovedPiece {
  MovedBits<P::word_bytes> of[P::bytes / P::word_bytes];
};

/// Whether pieces may begin at the address.
inline __device__ bool begins_piece(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

/// The piece of an array that begins with element number `at`, at a multiple of its bytes, at most
/// 16. It is not converted, so that others can be loaded meanwhile.
template <class T, int n = 16 / static_cast<int>(sizeof(T))>
__device__ Piece<T, n> load_piece(const void* data, std::int64_t at = 0) {
  using P = Piece<T, n>;
  MovedPiece<P> moved;
  const void* const begin = static_cast<const T*>(data) + at;
#pragma unroll
  for (int k = 0; k < P::bytes / P::word_bytes; ++k) {
    moved.of[k] = static_cast<const MovedBits<P::word_bytes>*>(begin)[k];
  }
  return __builtin_bit_cast(P, moved);
}

template <class T, int n>
__device__ void store_piece(void* data, std::int64_t at, const Piece<T, n>& piece) {
  using P = Piece<T, n>;
  const auto moved = __builtin_bit_cast(MovedPiece<P>, piece);
  void* const begin = static_cast<T*>(data) + at;
#pragma unroll
  for (int k = 0; k < P::bytes / P::word_bytes; ++k) {
    static_cast<MovedBits<P::word_bytes>*>(begin)[k] = moved.of[k];
  }
}

/// convert(), which would round an element to its own type.
template <class To, class From>
__device__ To as_number(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else {
    return convert<To>(x);
  }
}

/// A piece's elements as C.
template <class C, class T, int n>
__device__ void unpack(const Piece<T, n>& piece, C (&to)[n]) {
  using Elements = PieceElements<T, n>;
  const auto elements = __builtin_bit_cast(Elements, piece);
#pragma unroll
  for (int k = 0; k < n; ++k) to[k] = as_number<C>(elements.of[k]);
}

/// Numbers as elements of T, as casts convert them.
template <class T, class C, int n>
__device__ Piece<T, n> pack(const C (&from)[n]) {
  using P = Piece<T, n>;
  constexpr bool pairs = std::is_same_v<C, float> && sizeof(T) == 2 && kernels::kNarrow<T>;
  if constexpr (pairs) {
    P piece;
    bool nan = false;
#pragma unroll
    for (int k = 0; k < n; k += 2) {
      piece.words[k / 2] = rounded_pair<T>(from[k], from[k + 1]);
      nan |= (from[k] != from[k]) | (from[k + 1] != from[k + 1]);
    }
    if (!nan) return piece;
  }
  PieceElements<T, n> elements;
#pragma unroll
  for (int k = 0; k < n; ++k) elements.of[k] = as_number<T>(from[k]);
  return __builtin_bit_cast(P, elements);
}

}  // namespace tessera::cuda
