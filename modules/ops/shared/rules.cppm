export module tessera.ops:rules;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera::rules {

/// Elementwise with broadcasting: every dim of the result may be sharded; operands that have extent
/// 1 there, or lack the dim, are Replicate. Any number of operands and results (results all of the
/// broadcast shape).
void pointwise(const RuleContext& context, Strategies& strategies);
/// Placement rule of functions that are linear in all operands together (add, sub, neg, cast
/// between floating types): Partial(sum) and Partial(avg) pass through when all operands have them.
void pointwise_linear(const RuleContext& context, Strategies& strategies);
/// Linear in each operand when the others are Replicate (mul): Partial passes from any one operand.
void pointwise_multilinear(const RuleContext& context, Strategies& strategies);
/// Linear in the first operand only (div).
void pointwise_linear_in_first(const RuleContext& context, Strategies& strategies);

/// One strategy, from its placements.
Strategy strategy(std::initializer_list<Placement> in, std::initializer_list<Placement> out);

/// Adds: every present operand and every result is sharded on the same dim `dim` (all have at least
/// dim + 1 dims).
void same_dim(const RuleContext& context, Strategies& strategies, int dim);

/// Adds: Partial of each kind passes from all operands to all results. For operators that only move
/// elements: views, copies, joins.
void moves_elements(const RuleContext& context, Strategies& strategies);
/// Adds: Partial(sum) and Partial(avg) pass from all operands to all results.
void linear(const RuleContext& context, Strategies& strategies);

/// Adds: the dims that a reduction over `dims` (ascending, counted from the front) keeps may be
/// sharded. Of one operand; all results have the reduced shape.
void kept_dims(const RuleContext& context, Strategies& strategies, const Dims& dims, bool keepdim);

/// The placement of an operand on the mesh axis that the rule is called for; Replicate if it is
/// plain.
Placement placement_of(const RuleContext& context, const Tensor& operand);
/// For operators over `lists` lists of equal length, whose operands are the first list, then the
/// second list, and so on. Adds: each tensor of the first list keeps its placement, and the tensors
/// at the same position of the other lists must have the same placement. Partial(sum) and
/// Partial(avg) pass only if the operator is `linear` in all lists. Absent operands are skipped.
void rows_of_lists(const RuleContext& context, Strategies& strategies, std::size_t lists,
                   bool linear);

}  // namespace tessera::rules
