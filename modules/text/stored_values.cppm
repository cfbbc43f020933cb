export module tessera.text:stored_values;

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;
import :text_model;

// A model beside what another program has stored of the same model: outputs of its modules and
// gradients of its parameters.

export namespace tessera::text {

/// A stored tensor beside what the model has in its place.
struct StoredDifference {
  std::string name = {};     // of a module, or a parameter's and ".grad"
  Dims shape = {};           // of the stored one
  std::string problem = {};  // "the model's shape is [2, 3]"; empty: values were compared
  double largest = 0;        // of |x - y|; infinite where only one of them is finite
  double relative = 0;       // |x - y| / |y| by norms; 0 where both are 0
  bool agrees = true;        // relative is at most the tolerance
};

/// All that was compared.
struct StoredComparison {
  std::vector<StoredDifference> compared;  // in the order in which the model computes them
  std::vector<std::string> unknown;        // stored names that the model does not have
};

/// Computes the model for the stored "input_ids" [rows, tokens] or [tokens] (integers), and
/// compares: a stored tensor with a module's name with the first output of its last call; one with
/// a parameter's name, the model's or the one in a folder of transformers, and ".grad" with the
/// gradient of the mean loss of the next token. Shapes may differ in leading dims only
/// ([rows, tokens, n] and [rows tokens, n]). `tolerance`: of relative.
/// Errors (input): there are no such tokens; nothing else is stored that the model has; a token
/// that the model does not have; gradients of one token for each row.
StoredComparison compare_stored(const TextModel& model, const TensorSource& stored,
                                double tolerance);

}  // namespace tessera::text
