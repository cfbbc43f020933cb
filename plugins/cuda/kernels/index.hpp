// The structure of a kernel that takes rows of a table.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Threads of the block that looks at indices, at most.
inline constexpr unsigned most_looking = 1024;

/// Rows of a table of the type of y, [indices, width], in words of 16 bytes. Indices of rows that
/// are in other parts of the table get zeros.
struct EmbeddingArguments {
  IndexArguments look;
  const void* table;
  void* y;
  std::int64_t first_row, rows;  // of the table's part in the whole
  std::int64_t words;            // of a row
  std::int64_t step;             // from row to row of the table, in words
};

}  // namespace tessera::cuda
