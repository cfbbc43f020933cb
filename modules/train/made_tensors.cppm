module tessera.train:made_tensors;

import tessera.base;
import tessera.tensor;

namespace tessera {

/// Notes the memory that operators and factories of its thread make while a step is recorded, and
/// finds what is still there after the step. It holds no tensor. A mode below distribution.
class MadeTensors final : public Mode {
 public:
  MadeTensors();
  ~MadeTensors() override;

  Tensors call(const Call& call, NextCall& next) override;
  void perform(Action& action, NextAction& next) override;

  /// Runs what makes a step's inputs, which their owner may keep.
  Tensors unseen(const std::function<Tensors()>& make);
  /// Error: something but `results` still has a tensor that the step has made, such as a variable
  /// outside of it or a member of a module. No replay would write it.
  void check_gone(std::span<const Tensor> results) const;

 private:
  void note(const Tensor& x, std::string_view by) const;

  bool paused_ = false;
};

}  // namespace tessera
