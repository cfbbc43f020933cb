// cross_entropy with class weights and label smoothing, composed of the loss of each row and of the
// logarithm of its sum of exponentials, in which the kernels of cross_entropy do the work.
module;
#include <fmt/format.h>

#include <span>
#include <tessera/printable.hpp>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :loss_call;

namespace tessera::ops {
namespace {

void check(const Tensor& logits, const CrossEntropyOptions& options) {
  const double smoothing = options.label_smoothing;
  if (!(smoothing >= 0 && smoothing <= 1)) {
    fail({.thing = "cross_entropy",
          .wrong = "label_smoothing is out of range",
          .expected = "0 to 1",
          .got = fmt::format("{}", printable(smoothing))});
  }
  const Tensor& weight = options.weight;
  if (weight && logits.dims() > 0 && !(weight.shape() == Dims{logits.shape().back()})) {
    fail({.thing = "cross_entropy",
          .wrong = "weight has the wrong shape",
          .expected = fmt::format("[{}]", logits.shape().back()),
          .got = to_string(weight.shape())});
  }
  if (weight) {
    operands::check_floating("cross_entropy", weight);
  }
}

/// The sum over classes of w (-log softmax(logits)), for each row: with S the logarithm of the sum
/// of exponentials, it is S times the sum of w, less the sum of w logits.
Tensor over_all_classes(const Tensor& logits, const Tensor& weight, const Tensor& sums) {
  const Tensor wide = cast(logits, sums.dtype());
  const Tensor weighted = operands::whole_sum(sum(weight ? mul(wide, weight) : wide, {-1}));
  const Tensor scaled = weight ? mul(sums, sum(weight))
                               : mul_scalar(sums, static_cast<double>(logits.shape().back()));
  return sub(scaled, weighted);
}

}  // namespace

Tensor losses::weighted_cross_entropy(const Tensor& logits, const Tensor& targets,
                                      const CrossEntropyOptions& options) {
  operands::given("cross_entropy", "logits", logits);
  operands::given("cross_entropy", "targets", targets);
  check(logits, options);
  const RowLosses rows =
      cross_entropy_with_sums(logits, targets, options.ignore_index, options.loss_parallel);
  const Tensor ignored = eq(targets, static_cast<double>(options.ignore_index));
  const Tensor weight =
      options.weight ? cast(detach(options.weight), rows.losses.dtype()) : options.weight;
  Tensor of_targets;
  Tensor each = rows.losses;
  if (weight) {
    const std::vector<Tensor> classes{masked_fill(targets, ignored, 0)};
    of_targets = masked_fill(index(weight, classes), ignored, 0);
    each = mul(each, of_targets);
  }
  if (const double s = options.label_smoothing; s != 0) {
    const Tensor spread = masked_fill(over_all_classes(logits, weight, rows.log_sums), ignored, 0);
    const auto classes = static_cast<double>(logits.shape().back());
    each = add(mul_scalar(each, 1 - s), spread, s / classes);
  }
  if (options.reduction == Reduction::none) {
    return each;
  }
  Tensor total = sum(each);
  if (options.reduction == Reduction::sum) {
    return total;
  }
  const Tensor divisor = weight ? operands::whole_sum(sum(of_targets))
                                : cast(counted_rows(targets, options.ignore_index), total.dtype());
  return div(total, divisor);
}

}  // namespace tessera::ops
