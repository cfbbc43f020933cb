export module tessera.nn:module_hooks;

import tessera.base;
import tessera.tensor;
import :tree;

// What styles and losses that are computed in parts need of a module's hooks.

export namespace tessera::nn {

/// A hook that does nothing but replace outputs of forward by the same values in another layout or
/// type; it runs with the module's others, in the order in which all were added.
HookHandle add_conversion(Module& module, ForwardHook hook);
/// The outputs of forward as the module's conversions make them.
Tensors convert_outputs(Module& module, const Tensors& inputs, Tensors outputs);
/// Calls a method whose outputs are not those of forward, as it computes on with them: the hooks
/// are called around it, so styles provide the parameters, convert `inputs` and see what backward
/// begins with; conversions of outputs are not.
Tensors call_beyond(Module& module, const Tensors& inputs,
                    const std::function<Tensors(const Tensors&)>& method);
/// Which hooks a call runs now: another number after one was added, removed or replaced.
std::uint64_t hooks_identity(const Module& module);

}  // namespace tessera::nn
