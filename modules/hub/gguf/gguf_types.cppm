module tessera.hub:gguf_types;

import tessera.base;
import tessera.tensor;

// In which types the tensors of a GGUF file are written.

namespace tessera::hub {

/// What decides about the types besides the tensor.
struct GgufModelSizes {
  std::string architecture = {};
  std::int64_t layers = 0;
  std::int64_t experts = 0;
  bool shares_keys = false;  // several heads have the same keys
  bool has_head = false;     // logits have a matrix of their own
  /// Layers with a matrix of the values of attention, in order.
  std::vector<std::int64_t> value_layers = {};
};

/// In which types llama-quantize stores the tensors of a file: vectors and routers are never
/// rounded; what makes logits, and some parts of the layers, have more bits than the others.
/// (src/llama-quant.cpp)
class WrittenTypes {
 public:
  WrittenTypes(std::string type, GgufModelSizes sizes);

  /// By the name in the file.
  std::string of(const std::string& name, const Dims& shape) const;
  /// Whether a tensor is, or has, what makes the values of attention.
  static bool makes_values(const std::string& name);
  /// The layer of a tensor by its name, "blk.3.".
  static std::int64_t layer_of(const std::string& name);
  /// The type of elements; f32 for blocks of codes.
  static DType dtype(const std::string& type);

 private:
  std::string of_layer(const std::string& name) const;

  std::string type_;
  GgufModelSizes sizes_;
};

}  // namespace tessera::hub
