export module tessera.coded:coded_layers;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import :code_type;

export namespace tessera::coded {

/// A weight that a layer keeps in codes, and how it takes values: one matrix after the other where
/// it is a stack of them, so that no more than one is in memory in another form.
struct StoredWeight {
  std::string name;  // as nn::PackedWeight has it
  CodeType type = CodeType::bf16;
  /// Takes rows as they are stored in this type, u8 [rows, bytes of a row], which `read` has for
  /// the numbers of its first row and of rows. Those of a stack's matrices follow each other.
  std::function<void(const std::function<Tensor(std::int64_t row, std::int64_t rows)>& read)> take =
      {};
  /// Makes codes of values, f32 of the part's shape, which `read` has of a part of the weight. All
  /// ranks call it together.
  std::function<void(const std::function<Tensor(const LocalPart& part)>& read)> encode = {};
};

/// What a layer that keeps weights in codes attaches to itself, beside nn::PackedWeights.
struct StoredCodes {
  std::vector<StoredWeight> weights = {};
  /// Further names of the weight, of layers that share it.
  std::vector<std::string> other_names = {};
};

/// A weight that a layer may keep in codes.
struct CodableWeight {
  std::string name;        // of the weight in the model
  Dims shape;              // [rows, columns], or of a stack [matrices, rows, columns]
  bool of_tokens = false;  // it embeds tokens
  /// Ranks may have parts of its columns each, of whole blocks.
  bool splits_columns = true;
};

/// Puts layers that keep codes in the places of the Linear, Embedding and Experts layers of a model
/// without values. `type`: of each weight; none: it stays (of experts, a matrix may stay beside
/// others). A weight that layers share is asked for once. Nothing is trained: gradients end with an
/// error. `activations`: of the products. Returns how many layers were replaced. Errors: those of
/// nn::Module::replace_child.
int use_codes(nn::Module& root,
              const std::function<std::optional<CodeType>(const CodableWeight& weight)>& type,
              Activations activations = Activations::f32);

}  // namespace tessera::coded
