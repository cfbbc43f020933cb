export module tessera.execute:block;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :chains;

export namespace tessera::graph {

/// The block of memory that a program's own memories and the workspaces of its kernels share.
struct Block {
  ByMemory<std::int64_t> offsets = {};    // -1: not in the block
  ByPlace<std::int64_t> workspaces = {};  // -1: none
  ByPlace<std::int64_t> workspace_bytes = {};
  std::int64_t bytes = 0;
  std::int64_t least = 0;  // the most that is needed at once
  std::int64_t outside =
      0;                   // the most that is needed at once of what is neither in it nor an input
  bool for_peers = false;  // ranks reduce something in it
};
/// Not in the block: inputs, what is kept in other memory, what other ranks may read later, what
/// the dispatcher makes, and what stays in registers. `device`: whose kernels run. `chains`: those
/// of the shadow.
Block block_of(const Program& program, const Shadow& shadow, DeviceType device,
               std::span<const Chain> chains = {});

/// Whether the result is a copy where the operator would make a view if it could.
bool is_copy(const Instruction& i, const Shadow& shadow);
/// Whether the dispatcher makes the results: nobody uses one of them, or it is a copy whose
/// elements may be in another order than the operand's.
bool is_called(const Instruction& i, const Shadow& shadow);

}  // namespace tessera::graph
