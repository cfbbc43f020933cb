// Random numbers by global element index: a rank fills the runs of global indices that it holds.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <tuple>

#include "kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::RandomRange;

/// Any dims sharded, one of extent 1 too: the numbers do not depend on it.
void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

/// The local call learns which elements it has from the result's Spec, as a last attribute.
Attributes localize(const LocalContext& context) {
  Attributes local = context.call.attributes;
  local.add_pointer(context.out[0]);
  return local;
}

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

RandomRange read_range(AttributeReader& attributes) {
  RandomRange range;
  range.seed = static_cast<std::uint64_t>(attributes.free_integer());
  range.stream = static_cast<std::uint64_t>(attributes.free_integer());
  range.offset = static_cast<std::uint64_t>(attributes.free_integer());
  return range;
}

void add_range(Attributes& attributes, RandomStream& stream, std::int64_t count) {
  const std::uint64_t offset = take_numbers(stream, count);
  attributes.free_integer(static_cast<std::int64_t>(stream.seed))
      .free_integer(static_cast<std::int64_t>(stream.stream))
      .free_integer(static_cast<std::int64_t>(offset));
}

/// Calls f(local index of the first, global index of the first, count) for each run of the local
/// tensor's elements.
template <class F>
void for_each_local_run(const Call& call, std::int64_t count, F f) {
  if (call.attributes.fixed().empty()) {
    f(std::int64_t{0}, std::int64_t{0}, count);
    return;
  }
  const Spec& spec = *call.read().pointer<Spec>();
  std::int64_t at = 0;
  for_each_run(spec.shape, LocalPart{local_offset(spec), local_shape(spec)},
               [&](std::int64_t first, std::int64_t length) {
                 f(at, first, length);
                 at += length;
               });
}

/// Fills operand 0 in place: fill(range, count, pointer) for each run.
template <class F>
void fill_in_place(const Call& call, RandomRange range, F fill) {
  const Tensor& x = call.in[0];
  const Tensor target = x.is_contiguous() ? x : empty(x.shape(), x.dtype());
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    for_each_local_run(call, x.numel(),
                       [&](std::int64_t at, std::int64_t first, std::int64_t count) {
                         range.first_index = static_cast<std::uint64_t>(first);
                         fill(range, count, pointer<T>(target) + at);
                       });
  });
  if (!target.same_as(x)) {
    copy_into(x, target);
  }
}

// uniform_ and normal_

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
    .schema = "uniform_(x; low: float, high: float, seed: free, stream: free, offset: free)",
    .infer = infer,
    .cpu = uniform_cpu,
    .rule = rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with numbers uniform in [low, high).",
});

const Op& normal_op = register_op({
    .schema = "normal_(x; mean: float, deviation: float, seed: free, stream: free, offset: free)",
    .infer = infer,
    .cpu = normal_cpu,
    .rule = rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with normal numbers.",
});

// dropout: linear in x, and its own gradient with the same numbers.

void dropout_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  AttributeReader attributes = call.read();
  const double p = attributes.scalar();
  RandomRange range = read_range(attributes);
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const C factor = p < 1 ? static_cast<C>(1 / (1 - p)) : C{0};
    std::array<std::uint8_t, 4096> dropped;
    for_each_local_run(
        call, x.numel(), [&](std::int64_t at, std::int64_t first, std::int64_t count) {
          constexpr auto block = static_cast<std::int64_t>(std::tuple_size_v<decltype(dropped)>);
          for (std::int64_t done = 0; done < count; done += block) {
            const std::int64_t size = std::min(block, count - done);
            range.first_index = static_cast<std::uint64_t>(first + done);
            kernels::fill_bernoulli(range, size, p, dropped.data());
            const T* const from = pointer<T>(x) + at + done;
            T* const to = pointer<T>(out[0]) + at + done;
            for (std::int64_t i = 0; i < size; ++i) {
              to[i] = dropped[static_cast<std::size_t>(i)] != 0
                          ? T{}
                          : static_cast<T>(static_cast<C>(from[i]) * factor);
            }
          }
        });
  });
}

void dropout_infer(const Call& call, ResultShapes& out) {
  const double p = call.read().scalar();
  if (!(p >= 0 && p <= 1)) {
    refuse(call, fmt::format("p is a probability (expected 0 to 1, got {})", p));
  }
  infer(call, out);
}

void dropout_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);

const Op& dropout_op = register_op({
    .schema = "dropout(x; p: float, seed: free, stream: free, offset: free)",
    .infer = dropout_infer,
    .cpu = dropout_cpu,
    .rule = rule,
    .localize = localize,
    .backward = dropout_backward,
    .about = "x / (1 - p) with probability 1 - p, else 0.",
});

void dropout_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(dropout_op, {grads[0]}, context.attributes);
}

}  // namespace

Tensor uniform_(const Tensor& x, double low, double high, RandomStream& stream) {
  Attributes attributes;
  attributes.scalar(low).scalar(high);
  add_range(attributes, stream, x.numel());
  return call_one(uniform_op, {x}, attributes);
}

Tensor normal_(const Tensor& x, double mean, double deviation, RandomStream& stream) {
  Attributes attributes;
  attributes.scalar(mean).scalar(deviation);
  add_range(attributes, stream, x.numel());
  return call_one(normal_op, {x}, attributes);
}

Tensor dropout(const Tensor& x, double p, RandomStream& stream) {
  Attributes attributes;
  attributes.scalar(p);
  add_range(attributes, stream, x.numel());
  return call_one(dropout_op, {x}, attributes);
}

}  // namespace tessera::ops
