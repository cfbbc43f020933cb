module tessera.train:verification;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.capture;
import :step_plan;

namespace tessera {

// Calls that are taken both ways, as they are written and by their program, from the same state.

/// Values by the names that they have in a program.
using NamedValues = std::map<std::string, Tensor>;

/// Copies of what exists before or after a step, and how far random streams are. Without what
/// changes have added, which the step as it is written does not know, the scale of losses,
/// which steps do not write, and memory for gradients, in which no step leaves anything.
NamedValues copied_values(const StepInputs& all);
/// Writes values back that copied_values() has copied.
void write_values(const StepInputs& all, const NamedValues& values);

/// Error: a bit of what the program has left (`replayed`) differs from what the call as it is
/// written has left (`written`). It names the first difference: the tensor, the element, both
/// values, and the operator of the program, with its module, that has written it last. `again`: a
/// recording of the call as it is written, of which the first other instruction is named too.
void check_same_bits(const Program& program, const NamedValues& replayed,
                     const NamedValues& written, std::optional<Recording> again);

}  // namespace tessera
