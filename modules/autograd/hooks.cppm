export module tessera.autograd:hooks;

import tessera.base;
import tessera.tensor;
import :node;

export namespace tessera {

/// Calls `hook` with the whole gradient of `x` before it flows on; what it returns (if defined)
/// replaces it. Errors: x does not require a gradient.
void add_gradient_hook(const Tensor& x, GradientHook hook);

/// Calls `hook` each time a gradient was added to the leaf's grad(). Errors: x is not a leaf.
void add_post_accumulate_hook(const Tensor& leaf, std::function<void(Tensor& leaf)> hook);

}  // namespace tessera
