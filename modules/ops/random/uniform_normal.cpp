// Fills by global element index: uniform_, normal_.
module;
#include <cstdint>
#include <span>

#include "shared/kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :random_call;

namespace tessera::ops {
namespace {

using namespace random_numbers;
using kernels::RandomRange;

void uniform_cpu(const Call& call, std::span<Tensor>) {
  AttributeReader attributes = call.read();
  const auto low = static_cast<float>(attributes.scalar());
  const auto high = static_cast<float>(attributes.scalar());
  fill_in_place(call, read_range(attributes),
                [&]<class T>(const RandomRange& range, std::int64_t count, T* out) {
                  kernels::fill_uniform(range, count, low, high, out);
                });
}

void normal_cpu(const Call& call, std::span<Tensor>) {
  AttributeReader attributes = call.read();
  const auto mean = static_cast<float>(attributes.scalar());
  const auto deviation = static_cast<float>(attributes.scalar());
  fill_in_place(call, read_range(attributes),
                [&]<class T>(const RandomRange& range, std::int64_t count, T* out) {
                  kernels::fill_normal(range, count, mean, deviation, out);
                });
}

const Op& uniform_op = register_op({
    .schema = "uniform_(x; low: float, high: float, seed: free, stream: free, offset: free, run: "
              "free, stride: free)",
    .infer = infer_same,
    .cpu = uniform_cpu,
    .rule = any_dim_rule,
    .localize = localize_result,
    .in_place = true,
    .about = "Fills x with uniform numbers in [low, high).",
});

const Op& normal_op = register_op({
    .schema = "normal_(x; mean: float, deviation: float, seed: free, stream: free, offset: free, "
              "run: free, stride: free)",
    .infer = infer_same,
    .cpu = normal_cpu,
    .rule = any_dim_rule,
    .localize = localize_result,
    .in_place = true,
    .about = "Fills x with normal numbers.",
});

}  // namespace

Tensor uniform_(const Tensor& x, double low, double high, const RandomSource& source) {
  operands::given("uniform_", "x", x);
  Attributes attributes;
  attributes.scalar(low).scalar(high);
  add_numbers(attributes, source.take("uniform_", x.shape()));
  return call_one(uniform_op, {x}, attributes);
}

Tensor normal_(const Tensor& x, double mean, double deviation, const RandomSource& source) {
  operands::given("normal_", "x", x);
  Attributes attributes;
  attributes.scalar(mean).scalar(deviation);
  add_numbers(attributes, source.take("normal_", x.shape()));
  return call_one(normal_op, {x}, attributes);
}

}  // namespace tessera::ops
