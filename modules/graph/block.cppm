module tessera.graph:block;

import tessera.base;
import tessera.record;
import :shadow;

namespace tessera::graph {

/// The block of memory that a program's own memories and the workspaces of its kernels share.
struct Block {
  std::vector<std::int64_t> offsets = {};     // of each memory; -1: not in the block
  std::vector<std::int64_t> workspaces = {};  // by place; -1: none
  std::vector<std::int64_t> workspace_bytes = {};
  std::int64_t bytes = 0;
  std::int64_t least = 0;  // the most that is needed at once
};
/// Not in the block: inputs, what other ranks read where it is, and what the dispatcher makes.
Block block_of(const Program& program, const Shadow& shadow);

/// Whether the dispatcher makes the results: a view that is a copy here, results that nobody uses.
bool is_called(const Instruction& i, const Shadow& shadow);

}  // namespace tessera::graph
