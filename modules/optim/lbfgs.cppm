export module tessera.optim:lbfgs;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera::optim {

/// As torch.optim.LBFGS.
struct LbfgsOptions {
  double lr = 1;
  std::int64_t max_iter = 20;  // of a step
  std::int64_t max_eval = 0;   // of a step; 0: 5/4 of max_iter
  double tolerance_grad = 1e-7;
  double tolerance_change = 1e-9;
  std::int64_t history_size = 100;
  bool strong_wolfe = false;  // the line search; without it each step has the length lr
};

/// Limited-memory BFGS: an optimizer that evaluates the loss several times in a step. Parameters
/// may be distributed in any layouts: an inner product counts each element once, and needs one
/// collective of a scalar for each axis of a mesh at most. Source: Nocedal and Wright, Numerical
/// Optimization, 2006, algorithms 7.4, 3.5 and 3.6.
class Lbfgs {
 public:
  /// Errors (input): numbers out of range; no trained parameter.
  explicit Lbfgs(std::vector<nn::ParameterPointer> parameters, const LbfgsOptions& options = {});
  ~Lbfgs();
  Lbfgs(const Lbfgs&) = delete;
  Lbfgs& operator=(const Lbfgs&) = delete;

  /// `closure` drops the gradients, computes the loss and its gradients (complete ones: see
  /// parallel::GradientFinisher) and returns the loss, the same on all ranks. Returns the loss
  /// before the step. All ranks call it. Errors: a gradient whose layout is not its parameter's; a
  /// loss that is not finite at the beginning of a step.
  double step(const std::function<double()>& closure);
  /// How often closures were called.
  std::int64_t evaluations() const;

  /// The history of steps and gradients, by parameter, and numbers. Of a fresh optimizer: what a
  /// first step begins with.
  StateDict state() const;
  /// Copies a state of an optimizer of the same parameters and layouts. Error (input): names or
  /// layouts that do not fit.
  void load(const StateDict& state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::optim
