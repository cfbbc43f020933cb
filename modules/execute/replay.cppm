export module tessera.execute:replay;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :executor;

export namespace tessera {

/// Executes a program by calls of its operators on local tensors, instruction by instruction. What
/// an instruction is the last one to use is freed after it. Modes below distribution see the calls.
class Replay final : public Executor {
 public:
  /// `elsewhere`: for values that the program keeps in other memory. Error: the program is another
  /// rank's.
  explicit Replay(Program program, std::shared_ptr<MemoryPlace> elsewhere = nullptr);
  ~Replay() override;

  const Program& program() const override;
  void begin_in_order(std::span<const Tensor> inputs) override;
  void run(SectionKind section, const StepVariables& variables) override;
  const Tensor& output(const std::string& name) const override;
  void end() override;
  void abandon() noexcept override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
