// Recurrent layers: chunks against one token at a time, documents against each alone, gradients
// against differences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

using namespace tessera;

namespace {

using Values = std::vector<double>;
using Tokens = std::vector<std::int64_t>;
using nn::RecurrentRule;

/// A recurrent layer, one that attends, and a recurrent one.
nn::DecoderShape shape_of(RecurrentRule rule, std::int64_t gate_rank = 0) {
  nn::DecoderShape shape{.vocab = 13,
                         .dim = 8,
                         .layers = 3,
                         .heads = 2,
                         .kv_heads = 2,
                         .ffn_dim = 6,
                         .standard_deviation = 0.4,
                         .dtype = DType::f64};
  shape.layer_pattern = "ra";
  shape.recurrent.rule = rule;
  shape.recurrent.key_heads = 2;
  shape.recurrent.value_heads = gate_rank > 0 ? 2 : 4;
  shape.recurrent.key_dim = 3;
  shape.recurrent.value_dim = 5;
  shape.recurrent.kernel = 3;
  shape.recurrent.convolution_bias = true;
  shape.recurrent.gate_rank = gate_rank;
  return shape;
}

struct Kind {
  const char* name;
  nn::DecoderShape shape;
};
std::vector<Kind> kinds() {
  return {{"delta", shape_of(RecurrentRule::delta)},
          {"delta by features", shape_of(RecurrentRule::delta, 4)},
          {"sum", shape_of(RecurrentRule::sum)},
          {"convolution", shape_of(RecurrentRule::convolution)}};
}

std::shared_ptr<nn::DecoderLM> filled(const nn::DecoderShape& shape) {
  auto model = std::make_shared<nn::DecoderLM>(shape);
  set_seed(11);
  nn::materialize(*model);
  nn::initialize(*model);
  return model;
}

Tokens some_tokens(std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(i * i % 13);
  }
  return tokens;
}

Tensor batch(const Tokens& tokens) {
  return from_values(std::span<const std::int64_t>(tokens), {1, std::ssize(tokens)});
}

double largest(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference;
}

}  // namespace

TEST_CASE("chunks of recurrent layers compute what one token after the other does") {
  const NoGrad no_grad;
  const Tokens tokens = some_tokens(150);  // two whole chunks and a part of one, or nine and a part
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    const Values whole = to_doubles((*model)(batch(tokens)));
    nn::KeyValueCache cache;
    model->set_cache(&cache);
    CHECK(cache.layers.size() == 1);
    CHECK(cache.states.size() == 2);
    Values parts;
    const auto append = [&](std::int64_t begin, std::int64_t count) {
      const auto first = tokens.begin() + begin;
      const Values out = to_doubles((*model)(batch(Tokens(first, first + count))));
      parts.insert(parts.end(), out.begin(), out.end());
    };
    append(0, 7);
    for (std::int64_t at = 7; at < 80; ++at) {
      append(at, 1);
    }
    append(80, 70);
    CHECK(cache.length() == 150);
    CHECK(largest(parts, whole) < 1e-11);
    CHECK(cache.bytes() > 0);
    cache.clear();
    CHECK(cache.length() == 0);
    parts.clear();
    append(0, 150);
    CHECK(largest(parts, whole) < 1e-11);
  }
}

TEST_CASE("documents in a row have the results that recurrent layers give each alone") {
  const NoGrad no_grad;
  // Documents that begin and end within a chunk, and one that passes through several.
  const std::vector<std::int64_t> lengths = {5, 30, 100, 2, 13};
  const Tokens tokens = some_tokens(150);
  Tokens begins;
  Tokens positions;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) {
      begins.push_back(begin);
      positions.push_back(i);
    }
    begin += length;
  }
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    const Values packed = to_doubles((*model)({batch(tokens), batch(begins), batch(positions)})[0]);
    Values alone;
    auto first = tokens.begin();
    for (const std::int64_t length : lengths) {
      const Values out = to_doubles((*model)(batch(Tokens(first, first + length))));
      alone.insert(alone.end(), out.begin(), out.end());
      first += length;
    }
    CHECK(largest(packed, alone) < 1e-11);
    nn::KeyValueCache cache;
    model->set_cache(&cache);
    CHECK_THAT(
        testing::input_error([&] { (*model)({batch(tokens), batch(begins), batch(positions)}); }),
        Catch::Contains("with a state of earlier tokens, it takes no documents"));
  }
}

TEST_CASE("gradients through several chunks of recurrent layers are those of differences") {
  const Tokens tokens = some_tokens(71);
  Tokens targets = tokens;
  std::ranges::rotate(targets, targets.begin() + 1);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    const auto loss = [&] { return model->loss_sum(batch(tokens), batch(targets)); };
    backward(loss());
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
      if (parameter->name.find("layers.0.recurrent") == std::string::npos) {
        continue;
      }
      INFO(parameter->name);
      const double gradient = to_doubles(parameter->value.grad())[0];
      const NoGrad no_grad;
      const Tensor first = ops::narrow(ops::view(parameter->value, {-1}), 0, 0, 1);
      constexpr double step = 1e-5;
      ops::add_scalar_(first, step);
      const double above = to_doubles(loss())[0];
      ops::add_scalar_(first, -2 * step);
      const double below = to_doubles(loss())[0];
      ops::add_scalar_(first, step);
      CHECK(std::abs((above - below) / (2 * step) - gradient) <
            1e-6 * std::max(1.0, std::abs(gradient)));
    }
  }
}

TEST_CASE("recurrent layers refuse caches that are split and sizes that do not fit") {
  const auto model = filled(shape_of(RecurrentRule::delta));
  nn::KeyValueCache cache{.axis = 0};
  CHECK_THAT(testing::error_of([&] { model->set_cache(&cache); }),
             Catch::Contains("a recurrent layer passes its state from token to token"));
  nn::DecoderShape shape = shape_of(RecurrentRule::delta);
  shape.recurrent.key_heads = 3;
  CHECK_THAT(testing::input_error([&] { nn::DecoderLM{shape}; }),
             Catch::Contains("key_heads must divide value_heads (4 value_heads, 3 key_heads)"));
}
