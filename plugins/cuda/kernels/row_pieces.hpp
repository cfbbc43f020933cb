// Rows in pieces of 16 bytes, which a thread loads or stores at once.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/block.hpp"
#include "kernels/memory.hpp"
#include "kernels/pieces.hpp"
#include "kernels/rows.hpp"

namespace tessera::cuda {

/// Numbers of a row as a piece of T.
template <class T>
__device__ void store_piece(void* at, const float (&values)[Piece<T>::elements]) {
  store_words(at, pack<T>(values).words);
}

/// At any place of a T, element by element where it is not `aligned` to 16.
template <class T>
__device__ Piece<T> load_piece(const T* at, bool aligned) {
  if (aligned) return load_piece<T>(at);
  Piece<T> piece;
#pragma unroll
  for (int k = 0; k < Piece<T>::elements; ++k) {
    if constexpr (sizeof(T) == 4) {
      piece.words[k] = __builtin_bit_cast(std::uint32_t, at[k]);
    } else {
      piece.words[k / 2] |= std::uint32_t{at[k].bits} << (k % 2 * 16);
    }
  }
  return piece;
}
template <class T>
__device__ void store_piece(T* at, const float (&values)[Piece<T>::elements], bool aligned) {
  if (aligned) return store_piece<T>(at, values);
#pragma unroll
  for (int k = 0; k < Piece<T>::elements; ++k) at[k] = convert<T>(values[k]);
}

template <class T>
__device__ Piece<T> filled_piece(float value) {
  Piece<T> piece;
  std::uint32_t word = 0;
  if constexpr (std::is_same_v<T, float>) {
    word = __builtin_bit_cast(std::uint32_t, value);
  } else {
    word = std::uint32_t{T(value).bits} * 0x10001U;
  }
#pragma unroll
  for (std::uint32_t& w : piece.words) w = word;
  return piece;
}

/// Loads that a thread has in flight.
inline constexpr int pieces_at_once = 4;

/// Calls whole(piece, first element) for the pieces of a row that this thread of the block has, and
/// part(begin, end) for its last elements, in the order of each_piece.
template <class T, class Whole, class Part>
__device__ void each_loaded_piece(const T* row, std::int64_t begin, std::int64_t end, bool aligned,
                                  Whole whole, Part part) {
  constexpr int width = Piece<T>::elements;
  const std::int64_t step = std::int64_t{blockDim.x} * width;
  std::int64_t i = begin + std::int64_t{threadIdx.x} * width;
  for (; i + (pieces_at_once - 1) * step + width <= end; i += pieces_at_once * step) {
    Piece<T> all[pieces_at_once];
#pragma unroll
    for (int n = 0; n < pieces_at_once; ++n) all[n] = load_piece(row + i + n * step, aligned);
#pragma unroll
    for (int n = 0; n < pieces_at_once; ++n) whole(all[n], i + n * step);
  }
  for (; i + width <= end; i += step) whole(load_piece(row + i, aligned), i);
  if (i < end) part(i, end);
}

/// The first element of a row of an array in T, where one stride leads from row to row.
template <class T>
__device__ T* row_of(const RowArguments& a, int which, std::int64_t row) {
  return static_cast<T*>(a.arrays[which].data) + row * a.arrays[which].kept[0];
}

// ---- what is computed from rows, whichever way they are read ----

/// Threads of a team, at most.
inline constexpr unsigned largest_team = 512;

/// The threads that have a row together: a whole block, or a warp of it.
struct RowThreads {
  unsigned size, thread;
  std::int64_t number, count;  // among the teams of the launch

  explicit __device__ RowThreads(const RowArguments& a)
      : size(static_cast<unsigned>(a.team)),
        thread(threadIdx.x % size),
        number(std::int64_t{blockIdx.x} * (blockDim.x / size) + threadIdx.x / size),
        count(std::int64_t{gridDim.x} * (blockDim.x / size)) {}

  /// `value` of all threads of the team, joined as join_block does.
  template <class C, class Join>
  __device__ C join(C value, C none, Join join) const {
    return size == lanes ? join_warp(value, join) : join_block(value, none, join);
  }
};

/// A row of any type and strides, read from memory each time. The arrays that are read have the
/// first numbers; those that are absent have the value Kernel::absent(number).
template <class Kernel, class Number>
struct RowInMemory {
  using C = Number;
  using Element = std::int64_t;
  const RowArguments& a;
  const RowThreads& team;
  std::int64_t row;

  template <int which>
  __device__ C get(Element i) const {
    return Row<C>(a, which, row).get_or(i, static_cast<C>(Kernel::absent(which)));
  }
  __device__ C number(int which) const { return Row<C>(a, which, row).get(0); }
  __device__ void set_number(int which, C value) const {
    if (team.thread == 0) Row<C>(a, which, row).set(0, value);
  }
  template <class Body>
  __device__ void each(Body body) const {
    each_piece(0, a.length, a.piece, team.thread, team.size,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) body(i);
               });
  }
  template <class Body>
  __device__ void set_each(int which, Body body) const {
    const Row<C> y(a, which, row);
    each([&](Element i) { y.set(i, body(i)); });
  }
};

/// A row of T in pieces of 16 bytes that the team keeps in its registers, with the same bits. A
/// thread has Kernel::pieces of each of the first Kernel::loaded arrays.
template <class Kernel, class T>
struct RowInPieces {
  using C = float;
  static constexpr int width = Piece<T>::elements;
  struct Element {
    int piece, place;
  };
  const RowArguments& a;
  const RowThreads& team;
  int length;
  std::int64_t row = 0;
  Piece<T> arrays[Kernel::loaded][Kernel::pieces] = {};

  __device__ RowInPieces(const RowArguments& arguments, const RowThreads& of)
      : a(arguments), team(of), length(static_cast<int>(arguments.length)) {}

  __device__ int begin_of(int piece) const {
    return static_cast<int>(team.thread + team.size * static_cast<unsigned>(piece)) * width;
  }
  /// Of another row; what all rows share is loaded once.
  template <int which>
  __device__ void load() {
    const T* const x = row_of<T>(a, which, row);
    const bool exists = a.arrays[which].data != nullptr;
#pragma unroll
    for (int n = 0; n < Kernel::pieces; ++n) {
      if (exists && begin_of(n) < length) {
        arrays[which][n] = load_piece<T>(x + begin_of(n));
      } else {
        arrays[which][n] = filled_piece<T>(Kernel::absent(which));
      }
    }
  }

  template <int which>
  __device__ C get(Element e) const {
    return arrays[which][e.piece].get(e.place);
  }
  __device__ C number(int which) const { return *row_of<float>(a, which, row); }
  __device__ void set_number(int which, C value) const {
    if (team.thread == 0) *row_of<float>(a, which, row) = value;
  }
  template <class Body>
  __device__ void each(Body body) const {
#pragma unroll
    for (int n = 0; n < Kernel::pieces; ++n) {
      if (begin_of(n) < length) {
#pragma unroll
        for (int k = 0; k < width; ++k) body(Element{n, k});
      }
    }
  }
  template <class Body>
  __device__ void set_each(int which, Body body) const {
    T* const y = row_of<T>(a, which, row);
#pragma unroll
    for (int n = 0; n < Kernel::pieces; ++n) {
      if (begin_of(n) < length) {
        float values[width];
#pragma unroll
        for (int k = 0; k < width; ++k) values[k] = body(Element{n, k});
        store_piece<T>(y + begin_of(n), values);
      }
    }
  }
};

/// The sum of term(element) over a row, in all threads of its team.
template <class View, class Term>
__device__ typename View::C sum_of_row(const View& row, Term term) {
  using C = typename View::C;
  C sum = {};
  row.each([&](typename View::Element e) { sum += term(e); });
  return row.team.join(sum, C{}, Sum{});
}

/// Loads the arrays from number `which` on.
template <class Kernel, int which = 0, class View>
__device__ void load_arrays(View& view) {
  if constexpr (which < Kernel::loaded) {
    view.template load<which>();
    load_arrays<Kernel, which + 1>(view);
  }
}

/// A team has a row in turn.
template <class Kernel, class C>
__device__ void run_rows_in_memory(const RowArguments& a) {
  const RowThreads team(a);
  for (std::int64_t row = team.number; row < a.rows; row += team.count) {
    Kernel::run(RowInMemory<Kernel, C>{a, team, row});
  }
}
template <class Kernel, class T>
__device__ void run_rows_in_registers(const RowArguments& a) {
  const RowThreads team(a);
  RowInPieces<Kernel, T> view(a, team);
  for (view.row = team.number; view.row < a.rows; view.row += team.count) {
    load_arrays<Kernel>(view);
    Kernel::run(view);
  }
}

}  // namespace tessera::cuda
