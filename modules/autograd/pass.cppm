module tessera.autograd:pass;

import tessera.base;
import tessera.tensor;
import :node;

// Shared parts of this module's bodies.
namespace tessera {

/// The tensor whose gradient it is, as far as a gradient must fit it.
struct GradientTarget {
  const Dims& shape;
  DType dtype;
  const SpecHandle& spec;  // null: plain
};
/// Whether `gradient` has the target's shape and type, and is plain or distributed over the same
/// mesh as the target. Its layout may be another one: it says where the gradient is known, not what
/// it is. Terms of it must be Partial of sum or avg: no other terms can be added up.
bool fits(const GradientTarget& target, const Tensor& gradient);
/// Error: `what` "is wrong (expected ..., got ...); `advice`".
[[noreturn]] void refuse_gradient(const std::string& what, const GradientTarget& target,
                                  const Tensor& gradient, const char* advice);

/// Replaces `gradient` by what the hook returns. `name`: the hook's step.
/// Errors: the hook wrote the gradient; what it returns does not fit.
void call_hook(const GradientHook& hook, std::string_view name, Tensor& gradient);

/// Whether nothing else holds the memory of `x`, which is dense: it can be written or given away.
bool owns_memory_alone(const Tensor& x);
/// The one rule of ownership for every gradient that leaves backward: `gradient` itself where it
/// owns its memory alone, else a copy. The history stays where gradients are recorded.
Tensor own_gradient(Tensor gradient);

/// The gradients that reach `ends`, in their order, of a computation that was recorded from step
/// number `first` on. The pass stops at the ends, whose steps and hooks do not run; no grad() is
/// touched. Error, of `user`: the computation depends on an older step or a leaf that is not an
/// end.
std::vector<Tensor> gradients_between(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                      std::span<const Node::Edge> ends, std::uint64_t first,
                                      std::string_view user);
/// The number of the next step that this thread records.
std::uint64_t next_step();

/// While one exists, this thread records no steps, but notes which tensors that need a gradient are
/// used: those from outside of a function that will be computed again for backward.
class CaptureScope {
 public:
  CaptureScope();
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  /// The innermost scope of this thread, or null.
  static CaptureScope* current();
  void note(std::span<const Tensor> used);
  const std::vector<Tensor>& captured() const { return captured_; }

 private:
  CaptureScope* before_;
  std::vector<Tensor> captured_;
};

}  // namespace tessera
