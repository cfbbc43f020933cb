// The structure of rotary positions by a table.
#pragma once
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Angles of a block that makes them itself, for the rows of time that it has: one for each thread.
inline constexpr int angles_of_block = 256;

/// The cosines and sines of each position and pair are made once for all heads, in the type that is
/// computed in: [rows, half], a row for each time, or for each time of each batch.
struct RotaryTable {
  RotaryArguments rotary;
  void* cosines;  // not of rotary_pieces_TYPE, whose blocks make those of their rows
  void* sines;
  std::int64_t batch_rows;  // rows from batch to batch; 0: they share them
  std::int64_t rows;
  int rows_of_block;
  double frequencies[angles_of_block];  // of the pairs, by the host, where they are that few
};

}  // namespace tessera::cuda
