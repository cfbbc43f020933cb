export module tessera.train:step_plan;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.passes;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import :step;

// What programs of steps are given and give: numbers, guards, inputs and outputs, each declared
// here once. Steps as they are written, recorded, replayed and compiled ones take them from here.
export namespace tessera {

/// The names that parameters and optimizers' state have as inputs of programs. `name`: of the
/// parameter, or in Optimizer::state(); it may have a prefix.
std::string parameter_input(const std::string& name);
std::string state_input(const std::string& name);

}  // namespace tessera

namespace tessera {

/// What is known of a step before it.
struct BeforeStep {
  std::int64_t done = 0;     // steps or calls that were taken before
  std::int64_t updates = 0;  // that the optimizer has made before
  double weight = 1;         // StepBatch::weight
  double max_value = 0;      // optim::Clipping::max_value
  double scaler_factor = 1;  // of optim::GradScaler, by which losses are multiplied
};
/// What is known when its gradients are complete.
struct BeforeUpdate {
  double lr = 0;
  double grad_norm = 0;  // of gradients that are divided by the scaler's factor
  double max_norm = 0;   // optim::Clipping::max_norm; 0: there is none
  double scaler_factor = 1;
};

/// A number of a step: its name in programs, and how it follows from what is known.
template <class Value, class Known>
struct StepNumber {
  const char* name;
  Value (*of)(const Known& known);
};

namespace step_numbers {

extern const StepNumber<std::int64_t, BeforeStep>
    steps_begun;  // with this one; sums of gradients count by it
extern const StepNumber<std::int64_t, BeforeStep> updates;  // "step": of this update, from 1
/// What each sum of losses is multiplied by: 1 / weight. The scaler's factor is an input instead
/// (Role::scaler_factor).
extern const StepNumber<double, BeforeStep> loss_share;
extern const StepNumber<double, BeforeStep> max_value;  // of gradients that are still scaled
extern const StepNumber<double, BeforeUpdate> lr;
extern const StepNumber<double, BeforeUpdate> grad_scale;  // the optimizer multiplies gradients by

}  // namespace step_numbers

/// The numbers and guards of one step, and where its random streams stand. What a step takes from
/// it is a variable of the program where the step is recorded, and plain where it is not; a replay
/// gives its program variables().
class StepPlan {
 public:
  /// `recorder`: null for a step that is not recorded.
  StepPlan(Recorder* recorder, const StepGuards& guards);

  /// Computes the numbers that follow from this.
  void know(const BeforeStep& known);
  void know(const BeforeUpdate& known);
  /// Numbers that are not the same in all steps: those of a call, the counts of several optimizers.
  void set_number(const std::string& name, double value) { variables_.numbers[name] = value; }
  void set_count(const std::string& name, std::int64_t value) { variables_.counts[name] = value; }

  Number number(const StepNumber<double, BeforeStep>& which) const { return number(which.name); }
  Number number(const StepNumber<double, BeforeUpdate>& which) const { return number(which.name); }
  Count count(const StepNumber<std::int64_t, BeforeStep>& which) const { return count(which.name); }
  /// Error: it is not known (yet).
  Number number(const std::string& name) const;
  Count count(const std::string& name) const;
  const StepGuards& guards() const { return variables_.guards; }
  const StepVariables& variables() const { return variables_; }

  Recorder* recorder() const { return recorder_; }
  /// A section of the program where the step is recorded.
  void section(SectionKind kind, const std::function<void()>& body) const;

 private:
  template <class Known>
  void set(const StepNumber<double, Known>& number, const Known& known) {
    set_number(number.name, number.of(known));
  }
  void set(const StepNumber<std::int64_t, BeforeStep>& number, const BeforeStep& known) {
    set_count(number.name, number.of(known));
  }

  Recorder* recorder_;
  StepVariables variables_;
};

/// What exists before a step, and is an input of its program.
struct StepInput {
  Tensor value = {};  // local
  Role role = Role::other;
  int micro_batch = 0;                              // of rows
  MemoryCategory category = MemoryCategory::other;  // of its memory, where that has none yet
};
/// By the names that they have in programs.
using StepInputs = std::map<std::string, StepInput>;

/// State that changes add (graph::Editor::state) has such names in checkpoints.
inline constexpr const char* added_prefix = "transform.";

/// Names of other inputs: a parameter's gradient that is kept in memory of its own, a buffer, the
/// scaler's factor, and what a compiled step is called with.
std::string gradient_input(const std::string& name);
std::string buffer_input(const std::string& name);
inline constexpr const char* scaler_input = "scaler.scale";
std::string call_input(std::size_t number);
/// Names of outputs: the loss, what is measured besides, the power of the norm of the gradients
/// that the host computes the norm from, and what a compiled step returns.
inline constexpr const char* loss_output = graph::Editor::loss_output;
std::string measured_output(std::size_t number);
const char* norm_output(double norm);
std::string call_output(std::size_t number);

/// Tensors by the names that they have in programs.
void add_values(StepInputs& all, const std::map<std::string, Tensor>& values, Role role);
/// The rows of a micro-batch.
void add_rows(StepInputs& all, int micro_batch, const Tensors& rows);

}  // namespace tessera
