module tessera.train:step_capture;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.capture;
import tessera.execute;
import :captured_steps;
import :step;
import :step_plan;
import :step_objects;

namespace tessera {

/// The programs that one capture has: the whole step, and those that leave its update to the next
/// step or make that of the step before (graph::AcrossSteps).
enum class CapturedSteps::Part : std::uint8_t { whole_step, first, middle, last, update };

/// A program that steps are replayed from, and its parts. Only one of them has memory at a time.
struct CapturedSteps::Capture final : CapturedFunction::Entry {
  struct PartProgram {
    std::unique_ptr<Executor> executor = nullptr;
    std::vector<Tensor> given = {};  // last, in the order of its inputs
  };
  std::array<PartProgram, 5> parts = {};
  std::optional<Program> recorded = {};  // before passes, where steps are verified
  Part running = Part::whole_step;
  StepState state = {};                 // in which it was recorded
  StepState::Updated updated = {};      // the optimizer's parameters that it updates
  std::vector<Tensor> parameters = {};  // that `inputs` has the local tensors of
  /// Of all parts, without rows: gradients that are kept elsewhere are the same ones in each.
  StepInputs inputs = {};
  std::map<std::string, Tensor> pending = {};  // what is kept until the update is made
  std::optional<StepVariables> left = {};      // of the last step, where it left its update
  std::vector<std::uint64_t> versions = {};    // of the parameters, when it was left

  PartProgram& part(Part which) { return parts[static_cast<std::size_t>(which)]; }
  const PartProgram& part(Part which) const { return parts[static_cast<std::size_t>(which)]; }
  bool leaves() const { return static_cast<bool>(part(Part::first).executor); }
  const Program& program() const override { return part(Part::whole_step).executor->program(); }
  void abandon() noexcept override { part(running).executor->abandon(); }
  void release_memory() noexcept override;
};

}  // namespace tessera
