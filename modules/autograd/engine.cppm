export module tessera.autograd:engine;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Options of backward.
struct BackwardOptions {
  bool retain_graph = false;  // keep what was saved, for a second backward
  /// Record the backward itself, for second derivatives (implies retain_graph).
  bool create_graph = false;
};

/// Adds d(sum of roots . grads)/d(leaf) to the grad() of every leaf. `grads`: one for each root; an
/// undefined one means ones and is allowed for a root of one element only. Every grad() has dense
/// memory of its own: writing it changes no other tensor. The first error stops the pass.
/// Errors: a gradient of a root, or one that an operator's backward, a recorded function or a hook
/// computes, has another shape or type than its tensor, or is not on its mesh.
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options = {});
/// Backward of one scalar root.
void backward(const Tensor& root, BackwardOptions options = {});

/// The second half of a backward in two (backward_to_inputs): gradients of leaves that are still to
/// be computed, with what they need.
class LaterGradients {
 public:
  struct State;
  LaterGradients();
  explicit LaterGradients(std::unique_ptr<State> state);
  LaterGradients(LaterGradients&& other) noexcept;
  LaterGradients& operator=(LaterGradients&& other) noexcept;
  ~LaterGradients();

  /// Computes them and adds them to the leaves' grad(), with the bits and in the order of
  /// backward(), and calls the leaves' hooks; once. Errors: as backward().
  void compute();

 private:
  std::unique_ptr<State> state_;  // null: there are none
};

/// The first half of a backward in two: as backward(), but of all leaves only `inputs` get their
/// gradients. Where a step computes the gradients of its operands apart (Op::gradients_apart),
/// those of other leaves are computed by the second half, which is returned; it keeps what they
/// need and nothing else of the graph. Other steps (norms, functions of a program's own) compute
/// all their gradients now, and those of leaves are kept until then. Errors: as backward(); it is
/// called within a backward.
LaterGradients backward_to_inputs(std::span<const Tensor> roots, std::span<const Tensor> grads,
                                  std::span<const Tensor> inputs);

/// The gradients of `inputs` (leaves or computed), without touching any grad(). Undefined where
/// nothing depends on an input. Each has dense memory of its own; an input that is listed twice
/// gets two tensors. Errors: as backward(); an input is undefined.
std::vector<Tensor> gradients(std::span<const Tensor> roots, std::span<const Tensor> grads,
                              std::span<const Tensor> inputs, BackwardOptions options = {});

/// a + b for two gradients of one tensor; a Replicate one meets a Partial one as Partial. May reuse
/// a's memory when nothing else holds it. Errors: two shapes; two layouts that do not add up, which
/// are named.
Tensor add_gradients(Tensor& a, const Tensor& b);

/// Runs `callback` when the outermost backward of this thread has ended without error (at once when
/// none runs). A backward that fails drops the callbacks that wait for its end.
void queue_final_callback(std::function<void()> callback);
/// Whether this thread is inside a backward.
bool in_backward();

/// Parts of a backward that is computed in two halves.
enum class BackwardPart : std::uint8_t {
  whole,
  to_inputs,  // the first half of a backward in two: no leaf but the inputs gets a gradient
  to_leaves   // the second half
};
/// What the outermost backward of this thread computes; whole outside of any.
BackwardPart backward_part();
/// Runs `callback` at the beginning of the second half, where one follows: for hooks in a backward
/// to_inputs.
void queue_for_second_half(std::function<void()> callback);

}  // namespace tessera
