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
  explicit Optimizer(std::vector<nn::ParameterPointer> parameters);
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step with this learning rate; gradients are multiplied by `grad_scale` first (clipping).
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
  /// What is kept for one parameter.
  struct State {
    std::map<std::string, Tensor> tensors;
    std::int64_t step = 0;
  };
  /// The names of the tensors in State.
  virtual std::vector<std::string> state_names() const = 0;
  virtual void step_one(const nn::Parameter& parameter, const Tensor& gradient, State& state,
                        double lr, double grad_scale) = 0;

 private:
  State& state_of(std::size_t i);

  std::vector<nn::ParameterPointer> parameters_;
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
