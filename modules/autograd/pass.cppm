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

/// Gradients that a backward has left out, in the order in which it would have computed them.
class DeferredGradients {
 public:
  /// Calls the step's backward where some of its operands, marked by `later`, may be left out.
  /// `out` gets the gradients of the others.
  void call(const std::shared_ptr<Node>& node, std::span<Tensor> grads, std::span<Tensor> out,
            std::vector<bool> later);
  /// Notes a step without gradients: its operands are delivered nothing, in their turn.
  void skip(const std::shared_ptr<Node>& node, std::vector<bool> later);
  bool empty() const { return steps_.empty(); }

  /// Computes them. `deliver` gets each gradient (undefined: none) with its edge, `passed` is
  /// called after each step.
  void compute(const std::function<void(const Node::Edge& edge, Tensor gradient)>& deliver,
               const std::function<void()>& passed);

 private:
  struct Step {
    std::shared_ptr<Node> node;
    std::vector<bool> later;
    InlineVector<Tensor, 4> computed;  // those of `later` that are there already
    Node::Rest rest;                   // null: all are
  };
  std::vector<Step> steps_;
};
/// Error: the gradient of operand `i` of a step does not fit the operand.
void check_operand_gradient(const Node& node, std::size_t i, const Tensor& gradient);

/// A recorded function whose backward may leave gradients out (see Node::backward_apart).
using FunctionBackwardApart = std::function<Node::Rest(
    std::span<const Tensor> grads, std::span<Tensor> out, const std::vector<bool>& later)>;
void record_function_apart(std::string name, std::span<const Tensor> inputs,
                           std::span<const Tensor> outputs, FunctionBackwardApart backward);

/// The gradients that reach `ends`, in their order, of a computation that was recorded from step
/// number `first` on. The pass stops at the ends, whose steps and hooks do not run; no grad() is
/// touched. Error, of `user`: the computation depends on an older step or a leaf that is not an
/// end.
std::vector<Tensor> gradients_between(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                      std::span<const Node::Edge> ends, std::uint64_t first,
                                      std::string_view user);
/// The same without the gradients of the ends that `later` marks: those the function that is
/// returned fills in. None: nothing was left out.
Node::Rest gradients_between_apart(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                   std::span<const Node::Edge> ends, std::uint64_t first,
                                   std::string_view user, const std::vector<bool>& later,
                                   std::vector<Tensor>& found);
/// The number of the next step that this thread records.
std::uint64_t next_step();

class CaptureScope;
/// What the calling thread records.
struct TapeState {
  std::uint64_t steps = 0;          // how many steps it has recorded
  CaptureScope* capture = nullptr;  // the innermost one
};
TapeState& recorded_here();

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
