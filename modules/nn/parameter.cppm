export module tessera.nn:parameter;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :attachments;

export namespace tessera::nn {

/// How a new parameter is initialised.
struct Initialization {
  /// `packed`: a PackedWeight writes it.
  enum class Kind { zeros, ones, normal, uniform, packed } kind = Kind::zeros;
  double standard_deviation = 0;  // of the normal distribution; its mean is 0
  double bound = 0;               // of the uniform distribution: [-bound, bound)
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

/// Trained addition of a layer to a weight W [out, in] (LoRA, https://arxiv.org/abs/2106.09685): it
/// computes with W + scale() B A; with `dora` (https://arxiv.org/abs/2402.09353) each row of that
/// is scaled to the length that `magnitude` has for it. The layer has the parameters lora_A [rank,
/// in], lora_B [out, rank] and, with dora, magnitude [out]. W is its parameter "weight".
struct LowRankUpdate {
  std::int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;            // of the input of A, while training
  bool rank_stabilized = false;  // scale: alpha / sqrt(rank), otherwise alpha / rank
  bool dora = false;
  /// Empty: W is as it is; otherwise the name of the form in which the layer keeps it.
  std::string packing = {};

  double scale() const;
};

/// A weight that a layer keeps in another form, in other parameters: codes and scales. Whoever has
/// first values for it (initialize(), a reader of files) makes a tensor of them and lets the layer
/// pack it, one weight after the other. So no rank holds more than its part of one of them.
struct PackedWeight {
  std::string name;  // of the weight within the module, as files have it
  Dims shape;
  Initialization initialization;
  /// Layout of the tensor of first values, which is f32; plain where it is undefined.
  std::function<Layout()> layout;
  /// Writes the layer's parameters. All ranks call it together.
  std::function<void(const Tensor& values)> pack;
};

/// One way in which a layer can be split over the ranks of a mesh axis. Layers declare it
/// (Module::splits), and styles use it without knowing the layer.
struct LayerSplit {
  struct ParameterPlacement {
    ParameterPointer parameter;
    Placement placement;
  };
  /// Name of the split; styles request it by this name. Tessera's own:
  /// "columns": each rank computes some features of the output;
  /// "rows": each rank computes one term of the output, which is their sum;
  /// "classes": a loss whose logits are split by class;
  /// "experts": each rank has some experts of a mixture, which dim 0 counts.
  /// A layer and a style outside of Tessera may agree on others.
  std::string name;
  /// Parameters of this layer and of the layers inside. One that is not listed stays as it is
  /// (Replicate).
  std::vector<ParameterPlacement> parameters = {};
  /// Placements that forward needs of its inputs, by position. An input that is not listed is not
  /// changed.
  std::vector<Placement> inputs = {};
  /// Placement of the first output, as forward then returns it; Shard(-1) is the last dim.
  Placement output = {};
};

}  // namespace tessera::nn
