// Random numbers by global element index: a rank fills the runs of global indices that it holds.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>
#include <tuple>
#include <vector>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/philox.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {

void add_numbers(Attributes& attributes, const RandomNumbers& numbers) {
  for (const std::uint64_t field :
       {numbers.seed, numbers.stream, numbers.offset, numbers.run, numbers.stride}) {
    attributes.free_integer(static_cast<std::int64_t>(field));
  }
}

kernels::RandomRange read_range(AttributeReader& attributes) {
  kernels::RandomRange range;
  for (std::uint64_t* field :
       {&range.seed, &range.stream, &range.offset, &range.run, &range.stride}) {
    *field = static_cast<std::uint64_t>(attributes.free_integer());
  }
  return range;
}

const Spec* spec_of(const Call& call, std::size_t fixed) {
  const std::span<const std::int64_t> all = call.attributes.fixed();
  return all.size() == fixed ? nullptr : reinterpret_cast<const Spec*>(all.back());
}

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

/// Calls f(local index of the first, place of the first, count) for each run of the local tensor's
/// elements whose numbers follow each other.
template <class F>
void for_each_local_run(const Spec* spec, std::int64_t count, const RandomRange& range, F f) {
  const auto cut = [&](std::int64_t at, std::int64_t first, std::int64_t length) {
    const auto run = static_cast<std::int64_t>(range.run);
    while (length > 0) {
      const std::int64_t size = run == 0 ? length : std::min(length, run - first % run);
      f(at, static_cast<std::int64_t>(range.place(static_cast<std::uint64_t>(first))), size);
      at += size;
      first += size;
      length -= size;
    }
  };
  if (spec == nullptr) {
    cut(0, 0, count);
    return;
  }
  std::int64_t at = 0;
  for_each_run(spec->shape, LocalPart{local_offset(*spec), local_shape(*spec)},
               [&](std::int64_t first, std::int64_t length) {
                 cut(at, first, length);
                 at += length;
               });
}

/// Fills operand 0 in place: fill(range, count, pointer) for each run.
template <class F>
void fill_in_place(const Call& call, RandomRange range, F fill) {
  const Tensor& x = call.in[0];
  const Tensor target = x.is_contiguous() ? x : empty(x.shape(), x.dtype());
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    for_each_local_run(spec_of(call, 0), x.numel(), range,
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
    .schema = "uniform_(x; low: float, high: float, seed: free, stream: free, offset: free, run: "
              "free, stride: free)",
    .infer = infer,
    .cpu = uniform_cpu,
    .rule = rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with uniform numbers in [low, high).",
});

const Op& normal_op = register_op({
    .schema = "normal_(x; mean: float, deviation: float, seed: free, stream: free, offset: free, "
              "run: free, stride: free)",
    .infer = infer,
    .cpu = normal_cpu,
    .rule = rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with normal numbers.",
});

// bernoulli_, bernoulli and randint_: a number from the 32 bits of each element.

constexpr std::int64_t block = 4096;  // elements at a time

/// Calls f(local index, word) for each element.
template <class F>
void for_each_word(const Spec* spec, std::int64_t count, RandomRange range, F f) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(block));
  for_each_local_run(spec, count, range,
                     [&](std::int64_t at, std::int64_t first, std::int64_t length) {
                       for (std::int64_t done = 0; done < length; done += block) {
                         const std::int64_t size = std::min(block, length - done);
                         range.first_index = static_cast<std::uint64_t>(first + done);
                         kernels::fill_bits(range, size, words.data());
                         for (std::int64_t i = 0; i < size; ++i) {
                           f(at + done + i, words[static_cast<std::size_t>(i)]);
                         }
                       }
                     });
}

/// Fills operand 0 in place with number(word), a 64-bit integer.
template <class F>
void fill_from_words(const Call& call, RandomRange range, F number) {
  const Tensor& x = call.in[0];
  const Tensor numbers = empty(x.shape(), DType::i64);
  auto* const out = numbers.data<std::int64_t>();
  for_each_word(spec_of(call, 0), x.numel(), range,
                [&](std::int64_t at, std::uint32_t word) { out[at] = number(word); });
  const Tensor converted = empty(x.shape(), x.dtype());
  kernels::cast(kernels::DType::i64, kernel_type(x.dtype()), x.numel(), numbers.raw_data(),
                converted.raw_data());
  copy_into(x, converted);
}

/// How many of the 2^32 words mean 1.
std::uint64_t words_below(const Call& call, double p) {
  if (!(p >= 0 && p <= 1)) {
    refuse(call, fmt::format("p is a probability (expected 0 to 1, got {})", printable(p)));
  }
  return static_cast<std::uint64_t>(std::ceil(p * 0x1p32));
}

void fill_bernoulli_cpu(const Call& call, std::span<Tensor>) {
  AttributeReader attributes = call.read();
  const std::uint64_t limit = words_below(call, attributes.scalar());
  fill_from_words(call, read_range(attributes),
                  [&](std::uint32_t word) { return word < limit ? 1 : 0; });
}

void bernoulli_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor p = contiguous_operand(call.in[0]);
  AttributeReader attributes = call.read();
  const RandomRange range = read_range(attributes);
  visit_floating(p.dtype(), call.op.name, [&]<class T>(T) {
    for_each_word(spec_of(call, 0), p.numel(), range, [&](std::int64_t at, std::uint32_t word) {
      const auto probability = static_cast<kernels::Compute<T>>(pointer<T>(p)[at]);
      pointer<T>(out[0])[at] = static_cast<T>(static_cast<kernels::Compute<T>>(
          word < words_below(call, static_cast<double>(probability)) ? 1 : 0));
    });
  });
}

void randint_cpu(const Call& call, std::span<Tensor>) {
  AttributeReader attributes = call.read();
  const std::int64_t low = attributes.free_integer();
  const auto span = static_cast<std::uint64_t>(attributes.free_integer() - low);
  fill_from_words(call, read_range(attributes), [&](std::uint32_t word) {
    return low + static_cast<std::int64_t>((word * span) >> 32);
  });
}

const Op& fill_bernoulli_op = register_op({
    .schema =
        "bernoulli_(x; p: float, seed: free, stream: free, offset: free, run: free, stride: free)",
    .infer = infer,
    .cpu = fill_bernoulli_cpu,
    .rule = rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with 1 with probability p, else 0.",
});

const Op& bernoulli_op = register_op({
    .schema = "bernoulli(p; seed: free, stream: free, offset: free, run: free, stride: free)",
    .infer = infer,
    .cpu = bernoulli_cpu,
    .rule = rule,
    .localize = localize,
    .about = "1 with the probability in p, else 0.",
});

const Op& randint_op = register_op({
    .schema = "randint_(x; low: free, high: free, seed: free, stream: free, offset: free, run: "
              "free, stride: free)",
    .infer = infer,
    .cpu = randint_cpu,
    .rule = rule,
    .localize = localize,
    .in_place = true,
    .about = "Fills x with integers of [low, high).",
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
    for_each_local_run(spec_of(call, 0), x.numel(), range,
                       [&](std::int64_t at, std::int64_t first, std::int64_t count) {
                         constexpr auto block =
                             static_cast<std::int64_t>(std::tuple_size_v<decltype(dropped)>);
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
    refuse(call, fmt::format("p is a probability (expected 0 to 1, got {})", printable(p)));
  }
  infer(call, out);
}

void dropout_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);

/// Terms of a sum all lose the same elements.
void dropout_rule(const RuleContext& context, Strategies& strategies) {
  rule(context, strategies);
  rules::linear(context, strategies);
}

const Op& dropout_op = register_op({
    .schema =
        "dropout(x; p: float, seed: free, stream: free, offset: free, run: free, stride: free)",
    .infer = dropout_infer,
    .cpu = dropout_cpu,
    .rule = dropout_rule,
    .localize = localize,
    .backward = dropout_backward,
    .about = "x / (1 - p) with probability 1 - p, else 0.",
});

void dropout_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(dropout_op, {grads[0]}, context.attributes);
}

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

Tensor bernoulli_(const Tensor& x, double p, const RandomSource& source) {
  operands::given("bernoulli_", "x", x);
  Attributes attributes;
  attributes.scalar(p);
  add_numbers(attributes, source.take("bernoulli_", x.shape()));
  return call_one(fill_bernoulli_op, {x}, attributes);
}

Tensor bernoulli(const Tensor& p, const RandomSource& source) {
  operands::check_floating("bernoulli", p);
  Attributes attributes;
  add_numbers(attributes, source.take("bernoulli", p.shape()));
  return call_one(bernoulli_op, {p}, attributes);
}

Tensor randint_(const Tensor& x, std::int64_t low, std::int64_t high, const RandomSource& source) {
  operands::given("randint_", "x", x);
  const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  if (low >= high || span > (std::uint64_t{1} << 32) || x.dtype() == DType::boolean) {
    fail(
        fmt::format("randint_: expected low < high, at most 2^32 apart, and x not of bool (got "
                    "{} and {}, {})",
                    low, high, name_of(x.dtype())));
  }
  Attributes attributes;
  attributes.free_integer(low).free_integer(high);
  add_numbers(attributes, source.take("randint_", x.shape()));
  return call_one(randint_op, {x}, attributes);
}

Tensor dropout(const Tensor& x, double p, const RandomSource& source) {
  operands::given("dropout", "x", x);
  Attributes attributes;
  attributes.scalar(p);
  add_numbers(attributes, source.take("dropout", x.shape()));
  return call_one(dropout_op, {x}, attributes);
}

}  // namespace tessera::ops
