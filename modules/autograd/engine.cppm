export module tessera.autograd:engine;

import tessera.base;
import tessera.tensor;

export namespace tessera {

struct BackwardOptions {
  bool retain_graph = false;  // keep what was saved, for a second backward
  bool create_graph =
      false;  // record the backward itself, for second derivatives (implies retain_graph)
};

/// Adds d(sum of roots . grads)/d(leaf) to the grad() of every leaf. `grads`: one for each root; an
/// undefined one stands for ones and is allowed for a root of one element only. The first error
/// stops the pass.
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options = {});
/// The same for one scalar root.
void backward(const Tensor& root, BackwardOptions options = {});

/// The gradients of `inputs` (leaves or computed), without touching any grad(). Undefined where
/// nothing depends.
std::vector<Tensor> gradients(std::span<const Tensor> roots, std::span<const Tensor> grads,
                              std::span<const Tensor> inputs, BackwardOptions options = {});

/// a + b for two gradients of one tensor; a Replicate one meets a Partial one as Partial. May reuse
/// a's memory when nobody else holds it. Errors name both layouts.
Tensor add_gradients(Tensor& a, const Tensor& b);

/// Runs `callback` when the outermost backward of this thread has ended without error (at once when
/// none runs).
void queue_final_callback(std::function<void()> callback);
/// Whether this thread is inside a backward.
bool in_backward();

}  // namespace tessera
