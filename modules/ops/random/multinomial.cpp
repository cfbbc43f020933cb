// Positions sampled by weight: multinomial.
module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "random/kernels/sampling.hpp"
#include "shared/kernels/parallel.hpp"
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
void for_each_row(const SpecArgument& whole, std::int64_t rows, F f) {
  if (!whole) {
    for (std::int64_t row = 0; row < rows; ++row) {
      f(row, row);
    }
    return;
  }
  require(!whole->shape.empty(), "multinomial: the whole tensor is a scalar");
  check_part(without_last(local_shape(*whole)), rows);
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

void multinomial_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto draw = call.args<MultinomialArgs>();
  const Tensor x = contiguous_operand(w, call.in[0]);
  const std::int64_t n = x.shape().back();
  if (out[0].numel() == 0) {
    return;
  }
  const std::int64_t rows = out[0].numel() / draw.count;
  auto* const global_rows = w.take<std::int64_t>(rows);
  const std::int64_t bits = draw.replacement ? draw.count : n;
  /// A row's weights and the bits that it is sampled by.
  struct Arrays {
    double* weights;
    std::uint32_t* words;
  };
  const auto take = [&](Workspace& part) {
    return Arrays{part.take<double>(n), part.take<std::uint32_t>(bits)};
  };
  const Workspace::Parts parts = w.per_thread([&](Workspace& part) {
    take(part);
    if (!draw.replacement) {
      kernels::sample_without_replacement(part, n, nullptr, {}, draw.count, nullptr, nullptr);
    }
  });
  if (w.counts()) {
    return;
  }
  for_each_row(draw.whole, rows,
               [&](std::int64_t row, std::int64_t global_row) { global_rows[row] = global_row; });
  const auto read_row = [&](std::int64_t row, double* weights) {
    kernels::WeightsRead read;
    visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
      read = kernels::read_weights(n, pointer<T>(x) + row * n, weights);
    });
    return read;
  };
  const std::int64_t wanted = draw.replacement ? 1 : draw.count;
  std::atomic<std::int64_t> refused = rows;  // the first row that cannot be sampled
  kernels::parallel_for(0, rows, 1 + grain / (n + 1), [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    const Arrays arrays = take(part);
    for (std::int64_t row = begin; row < end; ++row) {
      const kernels::WeightsRead read = read_row(row, arrays.weights);
      if (!read.valid || read.positive < wanted) {
        std::int64_t first = refused.load();
        while (row < first && !refused.compare_exchange_weak(first, row)) {
        }
        return;
      }
      std::int64_t* const to = out[0].data<std::int64_t>() + row * draw.count;
      words_of(draw.numbers, global_rows[row] * bits,
               std::span(arrays.words, static_cast<std::size_t>(bits)));
      if (draw.replacement) {
        kernels::sample_with_replacement(n, arrays.weights, draw.count, arrays.words, to);
      } else {
        kernels::sample_without_replacement(part, n, arrays.weights, read, draw.count, arrays.words,
                                            to);
      }
    }
  });
  if (refused < rows) {
    Workspace part = parts.mine();
    const std::int64_t positive = read_row(refused, take(part).weights).positive;
    refuse(call, {.wrong = fmt::format("row {} cannot be sampled: its weights must be finite and "
                                       "not negative, with {} or more above 0",
                                       global_rows[refused.load()], wanted),
                  .got = fmt::format("{}", positive)});
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
