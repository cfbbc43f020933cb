// The structures of kernels that put elements in order.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Entries that one block sorts.
inline constexpr int sorted_tile = 1024;

/// An element by the key of its order, and its place in the line. Entries of a line all differ.
struct SortedEntry {
  std::uint64_t key;
  std::int64_t place;
};

/// Lines of `rows` in order, ascending. Arrays: x, and values and places, of which each line has
/// `count`.
struct SortArguments {
  RowArguments rows;
  const SortedEntry* from;  // in runs that are sorted
  SortedEntry* to;          // null: values and places are written
  std::int64_t run;
  std::int64_t count;
  bool descending;
  int bytes;  // of an element of x
};

}  // namespace tessera::cuda
