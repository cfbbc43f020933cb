export module tessera.checkpoint:compare_tensors;

import tessera.base;
import :source;

export namespace tessera {

/// How a tensor differs between two sources.
struct TensorDifference {
  std::string name;
  /// "only in the first", "only in the second", "shape [2] and [3]", "f32 and i64"; empty where the
  /// values were compared.
  std::string problem = {};
  std::string types = {};     // "f32 and bf16", where they differ and values were compared
  std::int64_t elements = 0;  // that differ
  double max_absolute = 0;    // of |x - y|; infinite where one of them is not a number
  double max_relative = 0;    // of |x - y| / max(|x|, |y|)
};

/// Options of a comparison of two checkpoints.
struct CompareOptions {
  /// Prefix, for each source, of the names that are compared; other names are
  /// ignored.
  std::string first_prefix = {};
  std::string second_prefix = {};
};

/// The tensors that differ, by name; values are read some rows at a time. Two floating types are
/// compared by value, and are a difference even where all values are equal. Two NaN are equal.
std::vector<TensorDifference> compare_tensors(const TensorSource& first, const TensorSource& second,
                                              const CompareOptions& options = {});

}  // namespace tessera
