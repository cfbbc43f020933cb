export module tessera.optim:scaler;

import tessera.base;
import tessera.tensor;

export namespace tessera::optim {

/// Options of loss scaling.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps with finite gradients
};

/// The factor of the loss that keeps gradients in the range of f16, as torch.amp.GradScaler: it
/// falls where gradients are not finite (the step is skipped then), and grows after
/// `growth_interval` finite steps in a row. It holds numbers only: whether gradients are finite all
/// ranks learn from one norm.
class GradScaler {
 public:
  /// Error (input): factors or intervals that are out of range.
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const { return scale_; }
  /// After each step.
  void update(bool found_nonfinite);
  /// "scale" and "growth_tracker".
  StateDict state() const;
  /// Error (input): a scalar is absent or out of range.
  void load(const StateDict& state);

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t finite_steps_ = 0;
};

}  // namespace tessera::optim
