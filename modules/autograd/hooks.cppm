export module tessera.autograd:hooks;

import tessera.base;
import tessera.tensor;
import :node;

export namespace tessera {

/// Calls `hook` with the whole gradient of `x` before it is passed on, once in every backward() or
/// gradients() that reaches x; what it returns (if defined) replaces it.
/// Errors: x is undefined or does not require a gradient; in backward: the hook wrote the gradient,
/// or returns one of another shape, type or mesh.
void add_gradient_hook(const Tensor& x, GradientHook hook);

/// Calls `hook` each time a gradient was added to the leaf's grad(). A hook that keeps the leaf's
/// grad() keeps the leaf's own tensor: changes in place are seen in both; the next backward makes a
/// new one. Errors: x is not a leaf.
void add_post_accumulate_hook(const Tensor& leaf, std::function<void(Tensor& leaf)> hook);
/// Adds a hook that runs after all of them, also those that are added later: for what takes the
/// gradient over.
void add_final_accumulate_hook(const Tensor& leaf, std::function<void(Tensor& leaf)> hook);

}  // namespace tessera
