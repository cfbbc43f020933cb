export module tessera.optim:optimizer;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera::optim {

/// To which parameters weight decay applies: those of two or more dims (embeddings included), or
/// all.
enum class Decay : std::uint8_t { matrices, all };

/// Updates parameters from their gradients. The state of a parameter has the parameter's layout and
/// is created at its first step.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step with this learning rate; gradients are multiplied by `grad_scale` first (clipping).
  /// All parameters with the same number of steps are updated by one operator call. Parameters
  /// without a gradient do not change. Errors: a gradient whose layout is not its parameter's (both
  /// are named); a parameter or state that shares memory with another tensor of the step.
  void step(double lr, double grad_scale = 1);
  /// Drops all gradients.
  void zero_grad();

  /// "exp_avg.<parameter>" and so on, and each parameter's step count.
  StateDict state() const;
  /// Creates the state that a first step would create, for all parameters, to be filled by a load.
  void prepare_state();
  /// Reads the step counts after a load; the tensors were loaded in place. Errors: missing or
  /// unexpected names.
  void load_scalars(const StateDict& state);

  const std::vector<nn::ParameterPointer>& parameters() const { return parameters_; }

 protected:
  /// `state_names`: the tensors that are kept for each parameter.
  Optimizer(std::vector<nn::ParameterPointer> parameters, std::vector<std::string> state_names,
            Decay decay);

  /// Parameters at the same step, with their gradients and state: lists of one length.
  struct Group {
    std::int64_t step = 0;  // of these parameters, from 1
    bool decays = false;
    std::vector<Tensor> parameters = {};
    std::vector<Tensor> gradients = {};
    std::vector<std::vector<Tensor>> states = {};  // a list for each of state_names
  };
  virtual void step_group(const Group& group, double lr, double grad_scale) = 0;

 private:
  /// The state of one parameter.
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
