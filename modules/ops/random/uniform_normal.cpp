// Fills by global element index: uniform_, normal_.
module;
#include <cstdint>
#include <span>

#include "shared/kernels/philox.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;
using kernels::RandomRange;

struct UniformArgs {
  Dynamic<double> low;
  Dynamic<double> high;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};

struct NormalArgs {
  Dynamic<double> mean;
  Dynamic<double> standard_deviation;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};

void uniform_cpu(const Call& call, std::span<const Tensor>, Workspace& w) {
  const auto arguments = call.args<UniformArgs>();
  const auto low = static_cast<float>(arguments.low);
  const auto high = static_cast<float>(arguments.high);
  fill_in_place(w, call, arguments,
                [&]<class T>(const RandomRange& range, std::int64_t count, T* out) {
                  kernels::fill_uniform(range, count, low, high, out);
                });
}

void normal_cpu(const Call& call, std::span<const Tensor>, Workspace& w) {
  const auto arguments = call.args<NormalArgs>();
  const auto mean = static_cast<float>(arguments.mean);
  const auto standard_deviation = static_cast<float>(arguments.standard_deviation);
  fill_in_place(w, call, arguments,
                [&]<class T>(const RandomRange& range, std::int64_t count, T* out) {
                  kernels::fill_normal(range, count, mean, standard_deviation, out);
                });
}

const Op& uniform_op = register_op<UniformArgs>({
    .schema = "uniform_(x)",
    .infer = infer_same,
    .cpu = in_workspace<uniform_cpu>,
    .workspace = workspace_of<uniform_cpu>,
    .rule = any_dim_rule,
    .localize = localize_result<UniformArgs>,
    .in_place = true,
    .about = "Fills x with uniform numbers in [low, high).",
});

const Op& normal_op = register_op<NormalArgs>({
    .schema = "normal_(x)",
    .infer = infer_same,
    .cpu = in_workspace<normal_cpu>,
    .workspace = workspace_of<normal_cpu>,
    .rule = any_dim_rule,
    .localize = localize_result<NormalArgs>,
    .in_place = true,
    .about = "Fills x with normal numbers.",
});

}  // namespace

Tensor uniform_(const Tensor& x, double low, double high, const RandomSource& source) {
  operands::given("uniform_", "x", x);
  return call_one(
      uniform_op, {x},
      UniformArgs{.low = low, .high = high, .numbers = source.take("uniform_", x.shape())});
}

Tensor normal_(const Tensor& x, double mean, double standard_deviation,
               const RandomSource& source) {
  operands::given("normal_", "x", x);
  return call_one(normal_op, {x},
                  NormalArgs{.mean = mean,
                             .standard_deviation = standard_deviation,
                             .numbers = source.take("normal_", x.shape())});
}

}  // namespace tessera::ops
