export module tessera.graph:across_steps;

import tessera.base;
import tessera.program;

export namespace tessera::graph {

/// A variable of the step before, "before.NAME".
std::string before_name(const std::string& variable);

/// A step whose update (its last section) is left to the next step, as programs of the same
/// sections. What the update reads of its own step is in inputs with Role::pending, which the
/// caller keeps from step to step; the update of the step before takes the variables "before.NAME".
struct AcrossSteps {
  /// Why the update cannot be left; "": it can. Otherwise nothing else is set.
  std::string refusal = {};
  Program first = {};   // leaves its update
  Program middle = {};  // makes the update of the step before, and leaves its own
  Program last = {};    // makes both
  Program update = {};  // one section, the update of the step before
  std::int64_t pending_bytes = 0;
};

/// Splits a step of several sections. An update is made where what it writes is first used, in the
/// order of these uses; where a collective is the first one, before all others of the step, so that
/// what is updated later is so while the first collectives are in flight. Decided by what operators
/// declare, alike on all ranks that have the same order of communication, which stays as it is.
/// The programs were compared with the step: two steps leave the same as its first and last
/// program, and as first, middle and update. Errors: see verify.
AcrossSteps split_across_steps(const Program& step);

}  // namespace tessera::graph
