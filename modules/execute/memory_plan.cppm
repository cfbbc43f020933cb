export module tessera.execute:memory_plan;

import tessera.base;
import tessera.program;

export namespace tessera::graph {

/// Memory that is needed from one place of a program to another one, both included.
struct MemoryPiece {
  std::int64_t bytes = 0;
  PlaceIndex first;
  PlaceIndex last;
};

/// Where each piece is in one block of memory. Pieces that are needed at the same place of the
/// program have no byte in common.
struct MemoryPlan {
  std::vector<std::int64_t> offsets = {};  // multiples of the alignment, by piece
  std::int64_t bytes = 0;                  // of the block
  /// The most that is needed at one place of the program: no plan has fewer bytes.
  std::int64_t least = 0;
};

/// Packs the pieces: the largest ones first, each in the smallest gap that it fits in. Error: a
/// piece that ends before it begins, or of negative size.
MemoryPlan plan_memory(std::span<const MemoryPiece> pieces, std::int64_t alignment = 64);

}  // namespace tessera::graph
