export module tessera.execute:guard_failure;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera {

/// A guard has another value than in the recording. Nothing that outlives the step was changed:
/// after Executor::abandon() it can be taken in another way.
class GuardFailure : public Error {
 public:
  GuardFailure(const GuardValue& recorded, std::size_t number, double now);

  /// Its place among guards_of(program).
  std::size_t number() const noexcept { return number_; }
  double now() const noexcept { return now_; }

 private:
  std::size_t number_;
  double now_;
};

/// Completes what a step that is given up has issued: all ranks do so at the same guard. Memory of
/// `tensors` is free for others then.
void complete_communication(const Program& program, ProgramPlace until,
                            const ByTensor<Tensor>& tensors);

}  // namespace tessera
