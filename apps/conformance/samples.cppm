export module tessera.conformance:samples;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :checks;

// Where calls of operators come from: what a program calls, and what follows from a schema.

export namespace tessera::conformance {

/// Floating operands that are f64, or all types; and few elements.
bool is_small(std::span<const Tensor> inputs, std::int64_t most = 200, bool any_type = false);

/// Keeps the calls that pass, each kind once.
class Recorder final : public Mode {
 public:
  /// So many of each operator. `any_type`: not only those in f64.
  explicit Recorder(std::size_t most, bool any_type = false) : most_(most), any_type_(any_type) {}

  Tensors call(const Call& heard, NextCall& next) override;
  /// Without gradients of the results: different numbers, where the operator takes a gradient.
  void add(const Op& op, std::vector<Tensor> inputs, const Attributes& attributes,
           std::vector<Tensor> output_gradients, std::int64_t largest = 200);
  /// For sources that come late and say something new.
  void allow_more(std::size_t count) { most_ += count; }

  std::string source;
  /// Called with each call that make_samples tries.
  std::function<void(const std::string&)> trying = {};
  std::map<std::string, std::vector<CallSample>> by_op;

 private:
  std::size_t most_;
  bool any_type_;
  std::set<std::string> keys_;
};

/// Records what `f` calls.
void listen(Recorder& recorder, const char* source, const std::function<void()>& f);

/// The operator's examples (Op::examples), and calls of its schema that it accepts: tensors of
/// several shapes and types, with some arguments.
void make_samples(const Op& op, Recorder& recorder);

/// Calls of a training step of a small model, with its gradients and its optimizer.
void hear_training(Recorder& recorder);

}  // namespace tessera::conformance
