// Positions sampled by weight: multinomial.
module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/types.hpp"
#include "sort/kernels/sort.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;

constexpr std::int64_t grain = 1 << 12;  // elements

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
    refuse(call, {.wrong = fmt::format("cannot sample {} positions{} from weights of shape {}",
                                       draw.count, draw.replacement ? "" : " without replacement",
                                       to_string(shape))});
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

/// What a row's weights must be, and whether they are.
struct Valid {
  bool finite = true;  // and not negative
  std::int64_t positive = 0;

  explicit Valid(std::span<const double> weights) {
    for (const double w : weights) {
      finite = finite && w >= 0 && w < std::numeric_limits<double>::infinity();
      positive += w > 0 ? 1 : 0;
    }
  }
  bool enough_for(std::int64_t wanted) const { return finite && positive >= wanted; }
};

/// The first position up to which the weights sum to more than the word's share of all. The weights
/// become these sums.
void with_replacement(std::span<double> weights, std::span<const std::uint32_t> words,
                      std::int64_t* out) {
  // The last position with a weight, should rounding leave the share at the whole.
  std::size_t last = weights.size() - 1;
  while (weights[last] == 0) {
    --last;
  }
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  const double total = weights.back();
  kernels::parallel_for(
      0, static_cast<std::int64_t>(words.size()), grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const double share =
              static_cast<double>(words[static_cast<std::size_t>(i)]) * 0x1p-32 * total;
          const auto found = std::upper_bound(weights.begin(), weights.end(), share);
          out[i] = std::min<std::int64_t>(found - weights.begin(), static_cast<std::int64_t>(last));
        }
      });
}

/// The positions that first have an event, when events come at the rates of the weights: the
/// smallest -log(u) / weight (Efraimidis and Spirakis, 2006). The weights become these times; the
/// time of no weight is NaN, which is last in every order.
void without_replacement(Workspace& w, std::span<double> weights,
                         std::span<const std::uint32_t> words, std::int64_t count,
                         std::int64_t* out) {
  const auto n = static_cast<std::int64_t>(weights.size());
  kernels::parallel_for(0, n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      double& weight = weights[static_cast<std::size_t>(i)];
      const double u = (static_cast<double>(words[static_cast<std::size_t>(i)]) + 1) * 0x1p-32;
      weight = weight > 0 ? -std::log(u) / weight : std::numeric_limits<double>::quiet_NaN();
    }
  });
  auto* const times = w.take<double>(count);
  kernels::sort(w, DType::f64, {1, n, 1, count}, false, weights.data(), times, out);
}

void multinomial_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto draw = call.args<MultinomialArgs>();
  const Tensor x = contiguous_operand(w, call.in[0]);
  const std::int64_t n = x.shape().back();
  if (out[0].numel() == 0) {
    return;
  }
  const std::int64_t rows = out[0].numel() / draw.count;
  auto* const global_rows = w.take<std::int64_t>(rows);
  /// A row's weights and the bits that it is sampled by.
  struct Arrays {
    Arrays(Workspace& part, std::int64_t count, std::int64_t bits)
        : weights(part.take<double>(count), static_cast<std::size_t>(count)),
          words(part.take<std::uint32_t>(bits), static_cast<std::size_t>(bits)) {}
    std::span<double> weights;
    std::span<std::uint32_t> words;
  };
  const std::int64_t bits = draw.replacement ? draw.count : n;
  const Workspace::Parts parts = w.per_thread([&](Workspace& part) {
    Arrays(part, n, bits);
    if (!draw.replacement) {
      part.take<double>(draw.count);
      kernels::sort(part, DType::f64, {1, n, 1, draw.count}, false, nullptr, nullptr, nullptr);
    }
  });
  if (w.counts()) {
    return;
  }
  for_each_row(draw.whole, rows,
               [&](std::int64_t row, std::int64_t global_row) { global_rows[row] = global_row; });
  const auto weights_of = [&](std::int64_t row, std::span<double> weights) {
    visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
      for (std::int64_t i = 0; i < n; ++i) {
        weights[static_cast<std::size_t>(i)] =
            static_cast<double>(static_cast<kernels::Compute<T>>(pointer<T>(x)[row * n + i]));
      }
    });
  };
  const std::int64_t wanted = draw.replacement ? 1 : draw.count;
  std::atomic<std::int64_t> refused = rows;  // the first row that cannot be sampled
  kernels::parallel_for(0, rows, 1 + grain / (n + 1), [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    const Arrays arrays(part, n, bits);
    for (std::int64_t row = begin; row < end; ++row) {
      const Workspace::Scope of_row(part);
      weights_of(row, arrays.weights);
      if (!Valid(arrays.weights).enough_for(wanted)) {
        std::int64_t first = refused.load();
        while (row < first && !refused.compare_exchange_weak(first, row)) {
        }
        return;
      }
      std::int64_t* const to = out[0].data<std::int64_t>() + row * draw.count;
      words_of(draw.numbers, global_rows[row] * bits, arrays.words);
      if (draw.replacement) {
        with_replacement(arrays.weights, arrays.words, to);
      } else {
        without_replacement(part, arrays.weights, arrays.words, draw.count, to);
      }
    }
  });
  if (refused < rows) {
    Workspace part = parts.mine();
    const Arrays arrays(part, n, bits);
    weights_of(refused, arrays.weights);
    refuse(call, {.wrong = fmt::format("row {} cannot be sampled: its weights must be finite and "
                                       "not negative, with {} or more above 0",
                                       global_rows[refused.load()], wanted),
                  .got = fmt::format("{}", Valid(arrays.weights).positive)});
  }
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
    .cpu = in_workspace<multinomial_cpu>,
    .workspace = workspace_of<multinomial_cpu>,
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
