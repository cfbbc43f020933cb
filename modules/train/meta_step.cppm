export module tessera.train:meta_step;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.capture;

export namespace tessera {

// Steps that are captured before the first one: a second, equal training is built of modules on the
// meta device, where nothing is computed and nobody communicates, and takes its first steps there.

/// Answers what the host reads on the meta device, which has no values: a guard by what it usually
/// is, anything else by 1. Constants that an optimizer makes on the host have their values. Install
/// it below distribution.
class MetaReads final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override;
  void perform(Action& action, NextAction& next) override;

 private:
  CallsOnMeta calls_;
};

/// Runs `body` as this rank on a thread of its own: what it books of memory, what it keeps of
/// operators and the numbers that it draws end with the thread. Errors are thrown on.
void as_rank(int rank, const std::function<void()>& body);

/// The same for what is only planned: with MetaReads, memory without bytes that is booked, and as
/// many threads for kernels as the caller has.
void on_meta(int rank, const std::function<void()>& body);

/// The first instruction at which the host reads a value that is no guard, in words; empty: none.
/// The meta device has no values, so such a program is not that of a step with data.
std::string reads_values(const Program& program);

}  // namespace tessera
