// Positions sampled by weight: multinomial.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "shared/kernels/types.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;

struct MultinomialArgs {
  std::int64_t count;
  bool replacement;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};  // the Spec of the weights
};

void multinomial_infer(const Call& call, ResultShapes& out) {
  const auto draw = call.args<MultinomialArgs>();
  operands::check_floating(call.op.name, call.in[0]);
  Dims shape = call.in[0].shape();
  if (shape.empty() || draw.count < 0 || (!draw.replacement && draw.count > shape.back())) {
    refuse(call, fmt::format("cannot sample {} positions{} from weights of shape {}", draw.count,
                             draw.replacement ? "" : " without replacement", to_string(shape)));
  }
  shape.back() = draw.count;
  out.push_back({shape, DType::i64});
}

/// Calls f(local row, global row) for each local row of weights [..., n].
template <class F>
void for_each_row(SpecArgument whole, std::int64_t rows, F f) {
  if (!whole) {
    for (std::int64_t row = 0; row < rows; ++row) {
      f(row, row);
    }
    return;
  }
  Dims shape = without_last(whole->shape);
  LocalPart part{without_last(local_offset(*whole)), without_last(local_shape(*whole))};
  shape.push_back(1);
  part.offset.push_back(0);
  part.shape.push_back(1);
  std::int64_t at = 0;
  for_each_run(shape, part, [&](std::int64_t first, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) {
      f(at++, first + i);
    }
  });
}

/// The first position up to which the weights sum to more than the word's share of all.
void with_replacement(std::span<const double> weights, double total,
                      std::span<const std::uint32_t> words, std::int64_t* out) {
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  // The last position with a weight, should rounding leave the share at the whole.
  std::size_t last = weights.size() - 1;
  while (weights[last] == 0) {
    --last;
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto found =
        std::upper_bound(sums.begin(), sums.end(), static_cast<double>(words[i]) * 0x1p-32 * total);
    out[i] = std::min<std::int64_t>(found - sums.begin(), static_cast<std::int64_t>(last));
  }
}

/// The positions that first have an event, when events come at the rates of the weights: the
/// smallest -log(u) / weight (Efraimidis and Spirakis, 2006).
void without_replacement(std::span<const double> weights, std::span<const std::uint32_t> words,
                         std::int64_t count, std::int64_t* out) {
  std::vector<std::pair<double, std::int64_t>> times;
  times.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) {
      const double u = (static_cast<double>(words[i]) + 1) * 0x1p-32;
      times.emplace_back(-std::log(u) / weights[i], static_cast<std::int64_t>(i));
    }
  }
  std::partial_sort(times.begin(), times.begin() + count, times.end());
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = times[static_cast<std::size_t>(i)].second;
  }
}

void multinomial_cpu(const Call& call, std::span<Tensor> out) {
  const auto draw = call.args<MultinomialArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  const std::int64_t n = x.shape().back();
  if (out[0].numel() == 0) {
    return;
  }
  std::vector<double> weights(static_cast<std::size_t>(n));
  for_each_row(
      draw.whole, out[0].numel() / draw.count, [&](std::int64_t row, std::int64_t global_row) {
        visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
          for (std::int64_t i = 0; i < n; ++i) {
            weights[static_cast<std::size_t>(i)] =
                static_cast<double>(static_cast<kernels::Compute<T>>(pointer<T>(x)[row * n + i]));
          }
        });
        double total = 0;
        std::int64_t positive = 0;
        bool valid = true;
        for (const double w : weights) {
          valid = valid && w >= 0 && !std::isinf(w);
          total += w;
          positive += w > 0 ? 1 : 0;
        }
        if (!valid || positive == 0 || (!draw.replacement && positive < draw.count)) {
          refuse(call, fmt::format("row {} cannot be sampled: its weights must be finite and not "
                                   "negative, with {} or more above 0 (got {})",
                                   global_row, draw.replacement ? 1 : draw.count, positive));
        }
        std::int64_t* const to = out[0].data<std::int64_t>() + row * draw.count;
        if (draw.replacement) {
          with_replacement(weights, total,
                           words_of(draw.numbers, global_row * draw.count, draw.count), to);
        } else {
          without_replacement(weights, words_of(draw.numbers, global_row * n, n), draw.count, to);
        }
      });
}

/// All rows but the positions in them.
void multinomial_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d + 1 < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

const Op& multinomial_op = register_op<MultinomialArgs>({
    .schema = "multinomial(weights)",
    .infer = multinomial_infer,
    .cpu = multinomial_cpu,
    .rule = multinomial_rule,
    .localize =
        [](const LocalContext& context) {
          return with_whole<MultinomialArgs>(context, context.in[0]);
        },
    .about = "Positions sampled from each row, with probabilities proportional to the weights.",
});

}  // namespace

Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement,
                   const RandomSource& source) {
  operands::given("multinomial", "weights", weights);
  Dims numbers = weights.shape();
  if (replacement && !numbers.empty()) {
    numbers.back() = std::max<std::int64_t>(count, 0);
  }
  checked_product(numbers, "multinomial");
  return call_one(multinomial_op, {weights},
                  MultinomialArgs{.count = count,
                                  .replacement = replacement,
                                  .numbers = source.take("multinomial", numbers)});
}

}  // namespace tessera::ops
