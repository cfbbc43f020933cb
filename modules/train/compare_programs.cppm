export module tessera.train:compare_programs;

import tessera.base;
import tessera.collective;
import tessera.program;
import tessera.passes;

export namespace tessera {

/// Compares what the ranks' programs communicate, before any of them runs: the ranks of a group
/// must make the same calls in the same order (graph::communication_of). All ranks of the world
/// call it together, each with its program or, where it has none, with null, which is compared with
/// nothing. The same Error (input) on all ranks: two ranks whose programs differ, the group, and
/// the first call that does. One sum of a number where all have a program and nothing differs.
void compare_programs(collective::World& world, const Program* program);

/// How the ranks of a world agree on what passes propose: a proposal holds where all ranks of its
/// group make it. One small exchange for each pass that asks. The world outlives it.
graph::Agree agreement_of(collective::World& world);

}  // namespace tessera
