export module tessera.nn:parameter;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :attachments;

export namespace tessera::nn {

/// How a new parameter is initialised.
struct Initialization {
  /// `packed`: a PackedWeight writes it.
  enum class Kind { zeros, ones, normal, uniform, packed, constant } kind = Kind::zeros;
  double standard_deviation = 0;  // of the normal distribution; its mean is 0
  double bound = 0;               // of the uniform distribution: [-bound, bound)
  double value = 0;               // of each element, with `constant`
};

/// A parameter's places, attached to it; null: the device's memory. A style that keeps parameters
/// in memory of its own looks them up.
struct MemoryPlaces {
  std::shared_ptr<MemoryPlace> value;
  std::shared_ptr<MemoryPlace> gradient;
  std::shared_ptr<MemoryPlace> state;  // of the optimizer
  Tensor gradient_memory = {};         // local; see gradient_memory_of
  std::string set_by;                  // the entry, for errors
};

/// A parameter's place in the model. Tied weights share one. What styles, precision, reductions and
/// optimizers know of it is attached to it.
class Parameter : public Attachments {
 public:
  /// On the meta device until it is materialised. value.set_requires_grad(false) freezes it; one of
  /// integers is frozen.
  Parameter(const Dims& shape, DType dtype, Initialization initialization);

  /// The tensor that the optimizer updates and a checkpoint stores; between two steps the only
  /// form.
  Tensor value;
  /// The tensor that forward computes with while a style provides another form (an unsharded one);
  /// otherwise undefined.
  Tensor computed;
  Initialization initialization;
  /// The qualified name under which the tree reaches it first; filled by Module::set_names.
  std::string name;
  /// Its other qualified names, if it is tied.
  std::vector<std::string> other_names;

  inline const Tensor& use() const { return computed ? computed : value; }
};

/// Where MemoryPlaces::gradient keeps the parameter's gradient: the same memory in every step, so
/// that captured steps have it as an input. Memory that something besides the parameter's gradient
/// holds is left to its holder, and new memory is taken. Errors (run): there is no space.
const Tensor& gradient_memory_of(Parameter& parameter);
using ParameterPointer = std::shared_ptr<Parameter>;

/// A tensor of a module that no gradient trains: a table, a mask, a statistic. On the meta device
/// until it is materialised, as a parameter is. A plan makes it a distributed tensor over the whole
/// mesh, Replicate unless a style places it.
class Buffer : public Attachments {
 public:
  /// `first`: the values that it gets when it is materialised, on the CPU. `is_saved`: a checkpoint
  /// stores it. Errors: the values are undefined, distributed, on another device, or require a
  /// gradient.
  explicit Buffer(Tensor first, bool is_saved = true);

  Tensor value;
  Tensor initial;
  bool saved;
  std::string name;  // the qualified name; filled by Module::set_names
};
using BufferPointer = std::shared_ptr<Buffer>;

}  // namespace tessera::nn
