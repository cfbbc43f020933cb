export module tessera.routed:expert_layer;

import tessera.base;
import tessera.tensor;

export namespace tessera::routed {

/// What the experts of a layer compute beside their products. A layer attaches it to itself, so
/// that another one can compute the same with its matrices in another form.
struct ExpertFunction {
  /// What the last matrix multiplies, of the products with all others.
  std::function<Tensor(std::span<const Tensor> products)> between = {};
  /// An expert's rows are multiplied by their weights, not its results.
  bool weigh_inputs = false;
};

/// What products are made with: some of a layer's matrices, those of this rank.
struct ExpertMatrices {
  std::size_t first = 0;             // the number of the first one
  std::span<const Tensor> matrices;  // as ExpertLayer has them
};

/// Rows [rows, in] of experts, one after the other, times each of the matrices: [rows, out] each.
/// `counts`, i64 [experts]: of each expert's rows. Those after them are 0 in the result.
/// `expected`: how many rows experts have together, for who must know before `counts` has values.
using ExpertProducts = std::function<Tensors(const Tensor& rows, const ExpertMatrices& matrices,
                                             const Tensor& counts, std::int64_t expected)>;

/// Experts with their matrices in some form. Shapes: E experts, F features between the matrices, C
/// of the result.
struct ExpertLayer {
  std::string name;  // of the module, for errors
  ExpertFunction function = {};
  ExpertProducts products = {};
  /// (E, F, C) of all but the last one, which is (E, C, F); in the place of the last dim what they
  /// are kept in. They say how the ranks have them.
  std::vector<Tensor> matrices = {};
  std::vector<Tensor> biases = {};  // (E, F) and (E, C); empty: there are none
};

/// What is routed: hidden states [..., C], and of each its experts [..., P].
struct RoutedRows {
  Tensor hidden;
  Tensor weights;
  Tensor chosen;     // i64, the numbers of experts
  Tensor kept = {};  // bool; where it is false, the expert does not compute it. Undefined: all
};

/// Something that the rows' ranks compute while these travel: it calls `work`, which computes the
/// experts, somewhere in its middle.
using BesideExperts = std::function<void(const std::function<void()>& work)>;

/// hidden [..., C]: for each the sum of its experts, by their weights. Ranks may have different
/// experts, where the rows are split too: each row travels to the ranks that have its experts, and
/// back; or some features of each, and compute a term of the sum. `beside` is called where rows
/// travel. Errors (input): layouts that do not go together.
Tensor expert_sums(const RoutedRows& rows, const ExpertLayer& layer,
                   const BesideExperts& beside = {});

}  // namespace tessera::routed
