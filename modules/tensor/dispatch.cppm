module;
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
export module tessera.tensor:dispatch;

import tessera.base;
import :value;
import :op;

export namespace tessera {

/// Calls an operator: autograd (when an operand requires a gradient) -> distribution (when one is
/// distributed) -> the kernel of the device. The one way in for eager code, backward, optimizers
/// and styles alike.
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

/// A listener sees each call and its results, above distribution (the program as written) or below
/// it (what is really done, local operators and collectives). For captures, reports and tests; per
/// thread; null for none.
enum class ListenAt { above_distribution, below_distribution };
class Listener {
 public:
  virtual ~Listener();
  virtual void called(const Call& call, std::span<const Tensor> out) = 0;
};
/// Installs `listener` for the calling thread and returns the one before.
Listener* set_listener(ListenAt where, Listener* listener);

/// The qualified name of the module whose forward runs on this thread, or whose step of backward
/// does; null outside of all modules. For reports.
const std::string* running_module();
/// The one copy of a name that lives until the process ends.
const std::string* interned_name(std::string_view name);
/// Makes `name` (interned) the running module until the end of the scope; null leaves it as it is.
class RunningModule {
 public:
  explicit RunningModule(const std::string* name);
  ~RunningModule();
  RunningModule(const RunningModule&) = delete;
  RunningModule& operator=(const RunningModule&) = delete;

 private:
  const std::string* before_;
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
