module tessera.train:capture_parts;

import tessera.base;
import tessera.tensor;
import tessera.device;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import :captured_step;
import :captures;
import :step_inputs;

namespace tessera {

// The parts that Training and CapturedStep share.

/// Why the program is not that of steps with these; "": it is.
std::string other_guard(const Program& program, const StepGuards& guards);
std::string text_of(const StepGuards& guards);

/// The numbers of an optimizer's parameters that a program updates, in order. `optimizer`: its
/// number in the step; `input_of`: the name of a parameter as an input.
std::vector<std::size_t> updated_by(
    const Program& program, int optimizer, const std::vector<nn::ParameterPointer>& parameters,
    const std::function<std::string(const nn::ParameterPointer&)>& input_of);
/// Tells the recorder what an optimizer has updated: parameters of these numbers.
void record_updates(Recorder& recorder, int optimizer, std::span<const std::size_t> updated,
                    const std::vector<nn::ParameterPointer>& parameters,
                    const std::function<std::string(const nn::ParameterPointer&)>& input_of);

/// Of these modules and all below them.
ModuleForms forms_of(std::span<nn::Module* const> roots);
/// Why a program that was recorded with modules of one form is none of another one; "": it is.
std::string other_modules(const ModuleForms& recorded, const ModuleForms& now);
/// The same for equal forms.
std::string text_of(const ModuleForms& forms);

/// Why a step cannot be recorded or replayed: the parameter has a gradient before it, which no
/// program has. "": it has none.
std::string held_gradient(const nn::Parameter& parameter);

/// Error: there are transformations, and this step or call (`what`) has no program that they could
/// change: `why`.
void refuse_untransformed(const graph::ExecutionOptions& execution, const char* what,
                          const std::string& why);
/// Names what exists before a step.
void record_inputs(Recorder& recorder, const StepInputs& inputs);

/// Inputs of a step in the order of the program's. State of optimizers that the program does not
/// use is left out, and with transformations, which may remove inputs, any other input too.
/// Errors: see Executor::arranged.
std::vector<Tensor> arranged_inputs(const Executor& executor, const StepInputs& all,
                                    bool transformed);

/// Runs a section of a program; an open CommunicationReport gets what it communicates.
void run_section(Executor& executor, SectionKind section, const StepVariables& variables);

/// A program, and what its results are for the caller.
struct CapturedStep::Capture final : CapturedFunction::Entry {
  std::string form = {};  // of the inputs
  ModuleForms modules = {};
  Missed missed = {};
  std::unique_ptr<Executor> executor = nullptr;
  std::vector<SpecHandle> layouts = {};                // of the results; null: not distributed
  std::vector<std::vector<std::size_t>> updated = {};  // parameters, in order, by optimizer

  const Program& program() const override { return executor->program(); }
  void abandon() noexcept override { executor->abandon(); }
  void release_memory() noexcept override { executor->release_memory(); }
};

/// What results are called in a program.
std::string output_name(std::size_t i);

}  // namespace tessera
