module tessera.train:capture_parts;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;
import :step;
import :step_plan;

namespace tessera {

// The parts that Training and CompiledStep share.

std::string text_of(const StepGuards& guards);

/// Error: there are changes, and this step or call (`what`) has no program that they could
/// change: `why`.
void refuse_untransformed(const graph::ExecutionOptions& execution, const char* what,
                          const std::string& why);
/// Names what exists before a step.
void record_inputs(Recorder& recorder, const StepInputs& inputs);

/// Inputs of a step in the order of the program's. State of optimizers that the program does not
/// use is left out, and with changes, which may remove inputs, any other input too.
/// Errors: see Executor::arranged.
std::vector<Tensor> arranged_inputs(const Executor& executor, const StepInputs& all,
                                    bool transformed);

/// Runs a section of a program; an open CommunicationReport gets what it communicates.
void run_section(Executor& executor, SectionKind section, const StepVariables& variables);

}  // namespace tessera
