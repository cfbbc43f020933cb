module tessera.passes:builtin;

import tessera.base;
import tessera.program;
import :editor;

// The built-in passes: each changes a program, and leaves the bits of its results. `known`: the
// analysis of the program as it comes in.
namespace tessera::graph {

void remove_dead(Program& program, const Analysis& known);
void merge_common(Program& program, const Analysis& known);
/// Uses the original in place of a copy, where nothing writes either of them.
void elide_copies(Program& program, const Analysis& known);
/// Communication of values that all ranks have exchanged before is not repeated.
void merge_collectives(Program& program, const Analysis& known, const Agree& agree);
void simplify_views(Program& program, const Analysis& known);
void split_lifetimes(Program& program, const Analysis& known);
void advance_issues(Program& program, const Analysis& known);
void delay_waits(Program& program, const Analysis& known);
/// Gathers of what is still known are not made again.
void keep_all_gathers(Program& program, const Analysis& known);
/// Computes cheap values again instead of keeping them, where that lowers the peak of memory.
void recompute_cheap(Program& program, const Analysis& known);

}  // namespace tessera::graph
