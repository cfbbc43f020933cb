export module tessera.train:step_inputs;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.nn;
import tessera.optim;

export namespace tessera {

/// The names that parameters and optimizers' state have as inputs of programs. `name`: of the
/// parameter, or in Optimizer::state(); it may have a prefix.
std::string parameter_input(const std::string& name);
std::string state_input(const std::string& name);

}  // namespace tessera

namespace tessera {

/// What exists before a step, and is an input of its program.
struct StepInput {
  Tensor value = {};  // local
  Role role = Role::other;
  int micro_batch = 0;                              // of rows
  MemoryCategory category = MemoryCategory::other;  // where its memory is booked on nothing
};
/// By the names that they have in programs.
using StepInputs = std::map<std::string, StepInput>;

/// State that transformations add (graph::Editor::state) has such names in checkpoints.
inline constexpr const char* added_prefix = "transform.";

/// Tensors by the names that they have in programs.
void add_values(StepInputs& all, const std::map<std::string, Tensor>& values, Role role);
/// The rows of a micro-batch.
void add_rows(StepInputs& all, int micro_batch, const Tensors& rows);

}  // namespace tessera
