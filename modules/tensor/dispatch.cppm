export module tessera.tensor:dispatch;

import tessera.base;
import :value;
import :op;

export namespace tessera {

/// Calls an operator: autograd (when an operand requires a gradient) -> distribution (when one is
/// distributed) -> the kernel of the device. The one way in for eager code, backward, optimizers
/// and styles alike. Errors: the call does not match the operator's schema (see check_call).
Tensors call(const Op& op, std::span<const Tensor> in, const Attributes& attributes = {});
inline Tensors call(const Op& op, std::initializer_list<Tensor> in,
                    const Attributes& attributes = {}) {
  return call(op, std::span<const Tensor>(in.begin(), in.size()), attributes);
}
/// The single result.
inline Tensor call_one(const Op& op, std::initializer_list<Tensor> in,
                       const Attributes& attributes = {}) {
  return std::move(call(op, in, attributes)[0]);
}
/// Errors: too few or too many operands, arguments of another type, or an undefined tensor where
/// the schema does not say that the operand may be absent; the text names operator and operand.
void check_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes);
/// For operators that have no operand to carry a layout, and whose attributes hold one: enters at
/// distribution. Below autograd: distribution -> kernel. What autograd calls.
Tensors call_below_autograd(const Op& op, std::span<const Tensor> in, const Attributes& attributes);
/// The kernel only, on local tensors. What distribution calls.
Tensors call_kernel(const Op& op, std::span<const Tensor> in, const Attributes& attributes);

/// The layers above fill these when the library is loaded.
using PathSlot = Tensors (*)(const Op& op, std::span<const Tensor> in,
                             const Attributes& attributes);
void set_autograd_slot(PathSlot slot);
void set_distribution_slot(PathSlot slot);

/// The qualified name of the module whose forward runs on this thread, or in whose forward the step
/// was recorded whose backward runs; null outside of any. For errors and reports.
const std::string* current_module();
/// The one string of this content that is kept until the process ends.
const std::string* interned_name(std::string_view name);
/// Within the scope a module runs; `name` is interned, or null.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string* name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  const std::string* before_;
};

/// To be called in a catch block: throws `error` on with the module in whose forward or backward it
/// was raised. As it is where it names a module already, is of another class of its own, or
/// `module` is null.
[[noreturn]] void rethrow_in_module(const Error& error, const std::string* module, bool backward);

/// Permissions that scopes of the layers above give to the calls of this thread. A recorded step
/// has in its backward those that its call had in forward, besides those of backward itself.
struct CallPermissions {
  bool redistribution = false;      // AllowRedistribution
  bool plain_is_replicate = false;  // PlainIsReplicate

  CallPermissions operator|(CallPermissions other) const {
    return {redistribution || other.redistribution, plain_is_replicate || other.plain_is_replicate};
  }
};
CallPermissions call_permissions();
/// Within the scope, calls have these permissions besides those that they have already.
class PermissionScope {
 public:
  explicit PermissionScope(CallPermissions permissions);
  ~PermissionScope();
  PermissionScope(const PermissionScope&) = delete;
  PermissionScope& operator=(const PermissionScope&) = delete;

 private:
  CallPermissions before_;
};

/// Whether operators record for backward (per thread; true at the start).
bool grad_enabled();
/// Nothing is recorded within the scope.
class NoGrad {
 public:
  explicit NoGrad(bool enabled = false);
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

}  // namespace tessera
