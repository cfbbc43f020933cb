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

/// n elements in words of at most 16 bytes, as they lie in memory.
template <class T, int n>
struct Piece {
  static constexpr int bytes = n * static_cast<int>(sizeof(T));
  using Word = typename MovedWord<bytes>::Type;
  static constexpr int words = bytes / static_cast<int>(sizeof(Word));
  Word word[words];
};

template <class T, int n>
struct PieceElements {
  T of[n];
};

/// Whether pieces may begin at the address.
inline __device__ bool begins_piece(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

/// The piece of an array that begins with element number `at`, a multiple of n. It is not
/// converted, so that others can be loaded meanwhile.
template <class T, int n>
__device__ Piece<T, n> load_piece(const void* data, std::int64_t at) {
  using P = Piece<T, n>;
  const void* const begin = static_cast<const T*>(data) + at;
  P piece;
#pragma unroll
  for (int k = 0; k < P::words; ++k) {
    piece.word[k] = static_cast<const typename P::Word*>(begin)[k];
  }
  return piece;
}

template <class T, int n>
__device__ void store_piece(void* data, std::int64_t at, const Piece<T, n>& piece) {
  using P = Piece<T, n>;
  void* const begin = static_cast<T*>(data) + at;
#pragma unroll
  for (int k = 0; k < P::words; ++k) {
    static_cast<typename P::Word*>(begin)[k] = piece.word[k];
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
    PieceElements<std::uint32_t, n / 2> words;
    bool nan = false;
#pragma unroll
    for (int k = 0; k < n; k += 2) {
      words.of[k / 2] = rounded_pair<T>(from[k], from[k + 1]);
      nan |= (from[k] != from[k]) | (from[k + 1] != from[k + 1]);
    }
    if (!nan) return __builtin_bit_cast(P, words);
  }
  PieceElements<T, n> elements;
#pragma unroll
  for (int k = 0; k < n; ++k) elements.of[k] = as_number<T>(from[k]);
  return __builtin_bit_cast(P, elements);
}

}  // namespace tessera::cuda
