module tessera.graph:across_parts;

import tessera.base;
import tessera.program;

namespace tessera::graph {

/// A memory that the update uses, of before it: what is kept until the update is made.
struct CarriedMemory {
  MemoryIndex memory;
  TensorIndex base = {};     // all of it
  PlaceIndex made_at = {};   // of what makes it, where it may be the kept memory itself; else none
  PlaceIndex carry_at = {};  // otherwise it is copied after this place, the last one that writes it
};

/// Facts of a step that is to be split.
struct SplitStep {
  const Program& program;
  const Analysis& known;
  PlaceIndex update = PlaceIndex(0);    // the first place of the last section
  ByMemory<TensorIndex> input_of = {};  // the input that is there in the next step too, or none
  ByTensor<bool> made_by_update = {};
  std::vector<CarriedMemory> crossings = {};  // in the order of their first uses
  std::string refusal = {};                   // why it cannot be split; "": it can
};
SplitStep split_step_of(const Program& program, const Analysis& known);

/// An instruction of the update, or some places of its lists.
struct UpdateCall {
  std::size_t instruction = 0;           // of the update
  std::vector<std::size_t> places = {};  // of its lists; empty: all
  PlaceIndex position = {};   // in the next step it is made before the instruction there ...
  PlaceIndex first_use = {};  // ... in the order of these places
};
/// The update in the order in which the next step makes it.
std::vector<UpdateCall> update_calls(const SplitStep& step);

/// A program of a step that was split, and what only its author knows of it.
struct Part {
  Program program;
  /// By section: instructions that bring all values of a memory into another one, which is kept.
  std::vector<std::vector<std::size_t>> carries = {};
  /// By section: before an instruction, inputs whose values are not needed any more.
  std::vector<std::map<std::size_t, std::vector<TensorIndex>>> renewals = {};
  /// Variables of the step before, and what they are called in that step.
  std::map<std::string, std::string> before = {};
};

struct Parts {
  Part first;
  Part middle;
  Part last;
  Part update;
};
Parts parts_of(const SplitStep& step, const std::vector<UpdateCall>& calls);

/// Errors: some steps do not leave the same as the programs that they were split into.
void check_parts(const Program& step, const Parts& parts);

/// Name of an input of programs that were split.
std::string pending_name(std::size_t crossing);

}  // namespace tessera::graph
