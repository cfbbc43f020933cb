module tessera.graph:passes;

import tessera.base;
import tessera.record;

// The passes: each changes a program, and leaves the bits of its results.
namespace tessera::graph {

void remove_dead(Program& program);
void merge_common(Program& program);
void simplify_views(Program& program);
void split_lifetimes(Program& program);
void advance_issues(Program& program);
void delay_waits(Program& program);
/// What is cheap to compute again is not kept, where that lowers the peak of memory.
void recompute_cheap(Program& program);

/// Tensors of a program take other numbers: `number_of[n]` instead of n.
void renumber(Instruction& instruction, std::span<const int> number_of);

}  // namespace tessera::graph
