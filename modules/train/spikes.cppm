export module tessera.train:spikes;

import tessera.base;
import :step;

export namespace tessera {

/// A number of a step that is far from those of the steps before it.
struct Spike {
  std::string name;   // "loss" or "grad_norm"
  double value = 0;   // may not be finite
  double usual = 0;   // the median of the steps before
  double spread = 0;  // of them, see SpikeDetector
};

/// Finds steps whose loss or gradient norm is larger than usual. A number is a spike where it is
/// not finite, or where it is more than `over` spreads above the median of the last `window` steps
/// that were no spikes. The spread is their median absolute deviation times 1.4826 (which makes it
/// the standard deviation of numbers that are normally distributed), and at least a hundredth of
/// the median's magnitude. Before there are `least` such steps, only numbers that are not finite
/// are spikes. What stays is no spike: after `stays` steps in turn whose finite numbers were
/// spikes, these steps take the place of those before.
class SpikeDetector {
 public:
  static constexpr std::size_t window = 100;
  static constexpr std::size_t least = 16;
  static constexpr std::size_t stays = 12;

  /// Error: `over` is not a finite number above 0.
  explicit SpikeDetector(double over);
  /// The first of the step's numbers that is a spike; none: nothing is unusual.
  std::optional<Spike> spike(const StepResult& step) const;
  /// Takes the numbers of a step; of one with a spike, only when such steps have become usual.
  void add(const StepResult& step);

  /// What it knows, as a text for a checkpoint.
  std::string state() const;
  /// Error (input): it is not such a text.
  void load(const std::string& state);

 private:
  /// Of steps, the oldest first.
  struct Numbers {
    std::vector<double> losses;
    std::vector<double> norms;
  };
  double over_;
  Numbers usual_;
  Numbers spikes_;  // of the last steps, all of which were spikes
};

}  // namespace tessera
