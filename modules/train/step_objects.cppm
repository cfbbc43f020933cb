module tessera.train:step_objects;

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;
import tessera.program;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :step_plan;

namespace tessera {

/// What the program of a step depends on besides what the caller gives, values and guards: a change
/// of it needs another program.
class StepState {
 public:
  /// Places of parameters, in order, by optimizer.
  using Updated = std::vector<std::vector<std::size_t>>;

  StepState() = default;
  /// Of these models and all modules below them. `updates`: those that each optimizer could have
  /// made; none: as many as the most that one of its parameters has taken.
  StepState(std::span<nn::Module* const> models, std::span<optim::Optimizer* const> optimizers,
            std::optional<std::int64_t> updates = {});

  /// The same before any update.
  StepState before_updates() const;
  /// Equal for states that one program can be right for.
  std::string text() const;
  /// Why a program that was recorded in another state, and updates these parameters, is none of
  /// this one; "": it is.
  std::string misfit(const StepState& recorded, const Updated& updated) const;

 private:
  /// What a program has in it of a module, besides values.
  struct ModuleState {
    const nn::Module* module = nullptr;
    nn::ModuleForm call;
    std::uint64_t held = 0;        // which parameters and buffers
    std::uint64_t trained = 0;     // which of these parameters
    std::uint64_t leaf_hooks = 0;  // on the parameters' gradients
    std::uint64_t updated_by = 0;  // the optimizers of the parameters

    /// How it differs from what it was; null: it does not.
    const char* difference(const ModuleState& was) const;
  };
  struct OptimizerSteps {
    const optim::Optimizer* optimizer = nullptr;
    std::int64_t most = 0;
    std::vector<std::int64_t> steps = {};  // of each parameter; -1: it is frozen
  };

  std::vector<ModuleState> modules_;
  std::vector<OptimizerSteps> taken_;
};

/// Models, plans and optimizers of a step, as they are found: what exists before it. As inputs of
/// programs they have names that follow from the order in which they were found.
class StepObjects {
 public:
  /// The model of which this is a module, if it is new, with its plan.
  void add(nn::Module& module);
  /// The optimizer's number.
  std::size_t add(optim::Optimizer& optimizer);
  const std::vector<nn::Module*>& models() const { return models_; }
  const std::vector<optim::Optimizer*>& optimizers() const { return optimizers_; }
  /// How many models and optimizers were found.
  std::size_t count() const { return models_.size() + optimizers_.size(); }

  StepState state() const { return StepState(models_, optimizers_); }
  /// Whether a model or an optimizer is gone.
  bool is_lost() const;
  /// The tensors of parameters and buffers. Error of check_kept: one was replaced since.
  std::vector<Tensor> held() const;
  void check_kept(std::span<const Tensor> before) const;
  /// How often the memory of each of them was written.
  std::vector<std::uint64_t> versions() const;
  /// Throws the error of a step on; it says which of them the step has written, if any.
  [[noreturn]] void rethrow_with_changes(const Error& error,
                                         std::span<const std::uint64_t> before) const;
  /// The parameter or buffer whose memory it is; "": none.
  std::string owner_of(const Storage& storage) const;
  /// Everything but what the caller gives.
  StepInputs inputs(const graph::AddedState& added) const;
  StepState::Updated updated_by(const Program& program) const;
  /// Tells the recorder what an optimizer has updated: parameters of these numbers.
  void record_updates(Recorder& recorder, std::size_t optimizer,
                      std::span<const std::size_t> updated) const;
  /// Where parameters are; the CPU where there are none.
  Device device() const;
  /// Why no program can be that of the next call: a parameter has a gradient. "": none has.
  std::string held_gradient() const;
  /// Of the update that each optimizer makes next.
  void set_counts(StepPlan& plan) const;

  void prepare_state();
  /// Sums of gradients are issued in backward from here on.
  void begin_sums(const Count& begun);
  /// Completes those of optimizers that were not updated.
  void finish_sums(const std::set<std::size_t>& updated);
  /// The norm of an optimizer's gradients, of which all sums are complete then.
  Tensor gradient_norm(std::size_t optimizer, double p);
  void update(std::size_t optimizer, const Number& lr, const optim::Clipping& clipping,
              const Number& grad_scale, StepPlan& plan);
  /// A replayed call has updated these.
  void count_step(const StepState::Updated& updated);
  void before_optimizer();
  void after_optimizer();
  void drop_gradients() noexcept;
  /// Parameters, on which all ranks have equal values, become distributed ones.
  void distribute(const std::map<std::string, Layout>& layouts);
  /// Those of distributed parameters and state, by the names of inputs.
  std::map<std::string, Layout> layouts() const;

 private:
  void add(const nn::ParameterPointer& parameter);
  std::string unique(std::string name);
  /// "buffer 'seen'", of one of held().
  std::string held_in_words(std::size_t i) const;
  /// What the names of an optimizer's state and count begin with.
  static std::string prefix(std::size_t optimizer);
  /// That of the number step_numbers::updates of an optimizer.
  static std::string count_name(std::size_t optimizer);
  void set_count(std::size_t optimizer, StepPlan& plan) const;
  std::string input_of(const nn::ParameterPointer& parameter) const;

  std::vector<std::weak_ptr<const bool>> lives_;  // of models and optimizers
  std::vector<nn::Module*> models_;
  std::vector<parallel::ParallelPlan*> plans_;
  std::vector<optim::Optimizer*> optimizers_;
  std::vector<std::unique_ptr<parallel::GradientFinisher>> finishers_;  // of each optimizer
  std::set<std::string> names_;
  std::vector<std::pair<std::string, nn::ParameterPointer>> parameters_;  // each once
  std::map<const nn::Parameter*, std::string> names_of_;
  std::vector<std::pair<std::string, nn::BufferPointer>> buffers_;
};

}  // namespace tessera
