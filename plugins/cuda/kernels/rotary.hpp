// The structure of rotary positions by a table.
#pragma once
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Heads that one thread turns by the same angles; one where there is too little for all
/// processors.
inline constexpr int heads_at_once = 4;

/// The cosines and sines of each position and pair are made once for all heads, in the type that is
/// computed in: [rows, half], a row for each time, or for each time of each batch.
struct RotaryTable {
  RotaryArguments rotary;
  void* cosines;
  void* sines;
  std::int64_t batch_rows;  // rows from batch to batch; 0: they share them
  std::int64_t rows;
  bool one_head;  // a thread turns one head, not heads_at_once
};

}  // namespace tessera::cuda
