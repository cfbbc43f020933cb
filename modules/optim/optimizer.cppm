export module tessera.optim:optimizer;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera::optim {

/// Which parameters weight decay acts on: those of two or more dims (embeddings included), or all.
enum class Decay : std::uint8_t { matrices, all };

/// Changes parameters by their gradients. State lies as the parameter does (same layout) and is
/// made at its first step.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step with this learning rate; gradients are multiplied by `grad_scale` first (clipping).
  /// Parameters that are as many steps old are changed by one call of an operator, however many.
  /// Parameters without a gradient stay as they are. Errors: a gradient in another layout than its
  /// parameter's names both.
  void step(double lr, double grad_scale = 1);
  /// Drops all gradients.
  void zero_grad();

  /// "exp_avg.<parameter>" and so on, and each parameter's step count.
  StateDict state() const;
  /// Makes the state of all parameters that `state` would hold after a first step, to be filled by
  /// a load.
  void prepare_state();
  /// Takes the step counts after a load; tensors were loaded in place. Errors: missing or
  /// unexpected names.
  void load_scalars(const StateDict& state);

  const std::vector<nn::ParameterPointer>& parameters() const { return parameters_; }

 protected:
  /// `state_names`: the tensors that are kept for each parameter.
  Optimizer(std::vector<nn::ParameterPointer> parameters, std::vector<std::string> state_names,
            Decay decay);

  /// Parameters that take the same step, with what goes with each: lists of one length.
  struct Group {
    std::int64_t step = 0;  // of these parameters, from 1
    bool decays = false;
    std::vector<Tensor> parameters = {};
    std::vector<Tensor> gradients = {};
    std::vector<std::vector<Tensor>> states = {};  // a list for each of state_names
  };
  virtual void step_group(const Group& group, double lr, double grad_scale) = 0;

 private:
  /// What is kept for one parameter.
  struct State {
    std::vector<Tensor> tensors;
    std::int64_t step = 0;
  };
  State& state_of(std::size_t i);

  std::vector<nn::ParameterPointer> parameters_;
  std::vector<std::string> state_names_;
  Decay decay_;
  std::vector<State> states_;
};

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  Decay decay = Decay::matrices;
};
std::unique_ptr<Optimizer> adamw(std::vector<nn::ParameterPointer> parameters,
                                 const AdamWOptions& options);

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  Decay decay = Decay::matrices;
};
std::unique_ptr<Optimizer> sgd(std::vector<nn::ParameterPointer> parameters,
                               const SgdOptions& options);

}  // namespace tessera::optim
