export module tessera.coded:coded_layers;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import :code_type;

export namespace tessera::coded {

/// What a layer that keeps its weight in codes attaches to itself, beside nn::PackedWeights.
struct StoredCodes {
  std::optional<CodeType> type = {};  // none: the module keeps no codes
  /// Takes rows as they are stored in this type, u8 [rows, bytes of a row], which `read` has for
  /// the numbers of its first row and of rows.
  std::function<void(const std::function<Tensor(std::int64_t row, std::int64_t rows)>& read)> take =
      {};
  /// Further names of the weight, of layers that share it.
  std::vector<std::string> other_names = {};
};

/// The weight of a layer that may keep codes.
struct CodableWeight {
  std::string name;  // of the weight in the model
  Dims shape;
  bool of_tokens = false;  // it embeds tokens
};

/// Puts layers that keep codes in the places of the Linear and Embedding layers of a model without
/// values. `type`: of each weight; none: its layer stays. A weight that layers share is asked for
/// once. Nothing is trained: gradients end with an error. `activations`: of the products. Returns
/// how many were replaced. Errors: those of nn::Module::replace_child.
int use_codes(nn::Module& root,
              const std::function<std::optional<CodeType>(const CodableWeight& weight)>& type,
              Activations activations = Activations::f32);

}  // namespace tessera::coded
