// The head's product and its loss in parts, against loops over their formulas and the whole form.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

using namespace tessera;
using tessera::testing::error_of;

namespace {

using Values = std::vector<double>;

constexpr std::int64_t ignored = -5;
constexpr std::int64_t batch = 2;
constexpr std::int64_t tokens = 7;
constexpr std::int64_t in = 6;
constexpr std::int64_t classes = 11;

Tensor pattern(const Dims& shape, double scale, double phase, DType dtype) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = scale * std::sin(1.3 * static_cast<double>(i) + phase);
  }
  return ops::cast(x, dtype);
}

Tensor targets_of() {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < batch * tokens; ++i) {
    values.push_back(i % 5 == 3 ? ignored : (i * 4) % classes);
  }
  return from_values(std::span<const std::int64_t>(values), {batch, tokens});
}

struct Case {
  Tensor x, weight, bias, targets, dlosses;
};

Case case_of(DType dtype, bool bias) {
  return {
      .x = pattern({batch, tokens, in}, 1.5, 0.3, dtype),
      .weight = pattern({classes, in}, 0.8, 0.9, dtype),
      .bias = bias ? pattern({classes}, 0.5, 0.1, dtype) : Tensor(),
      .targets = targets_of(),
      .dlosses = pattern({batch, tokens}, 1, 0.7, dtype == DType::f64 ? DType::f64 : DType::f32)};
}

struct Outcome {
  Tensor losses, dx, dweight, dbias;
};

template <class F>
Outcome outcome(const Case& c, F losses_of) {
  const auto leaf = [](const Tensor& t) {
    Tensor x = t ? ops::clone(t) : t;
    if (x) {
      x.set_requires_grad();
    }
    return x;
  };
  const Tensor x = leaf(c.x);
  const Tensor weight = leaf(c.weight);
  const Tensor bias = leaf(c.bias);
  const Tensor losses = losses_of(x, weight, bias);
  backward(std::vector<Tensor>{losses}, std::vector<Tensor>{c.dlosses});
  return {detached(losses), x.grad(), weight.grad(), bias ? bias.grad() : Tensor()};
}

Outcome in_parts(const Case& c, std::int64_t rows, double softcap) {
  return outcome(c, [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return nn::linear_cross_entropy(x, weight, bias, c.targets,
                                    {.rows = rows, .ignore_index = ignored, .softcap = softcap});
  });
}

Outcome whole(const Case& c, double softcap) {
  return outcome(c, [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return ops::cross_entropy_rows(nn::soft_capped(ops::linear(x, weight, bias), softcap),
                                   c.targets, ignored);
  });
}

/// Losses and gradients by loops over the formulas, in double.
struct Loops {
  Values losses, dx, dweight, dbias;
};

Loops loops(const Case& c, double softcap) {
  const Values x = to_doubles(c.x);
  const Values w = to_doubles(c.weight);
  const Values b = c.bias ? to_doubles(c.bias) : Values(classes, 0.0);
  const Values g = to_doubles(c.dlosses);
  const Values targets = to_doubles(c.targets);
  constexpr auto n = static_cast<std::size_t>(in);
  constexpr auto k = static_cast<std::size_t>(classes);
  Loops r{Values(targets.size(), 0), Values(x.size(), 0), Values(w.size(), 0), Values(k, 0)};
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == static_cast<double>(ignored)) {
      continue;
    }
    Values logits(k);
    Values slopes(k, 1);
    double sum = 0;
    for (std::size_t v = 0; v < k; ++v) {
      double y = b[v];
      for (std::size_t i = 0; i < n; ++i) {
        y += x[row * n + i] * w[v * n + i];
      }
      if (softcap != 0) {
        slopes[v] = 1 / std::pow(std::cosh(y / softcap), 2);
        y = softcap * std::tanh(y / softcap);
      }
      logits[v] = y;
      sum += std::exp(y);
    }
    const auto target = static_cast<std::size_t>(targets[row]);
    r.losses[row] = std::log(sum) - logits[target];
    for (std::size_t v = 0; v < k; ++v) {
      const double d = g[row] * slopes[v] * (std::exp(logits[v]) / sum - (v == target ? 1 : 0));
      r.dbias[v] += d;
      for (std::size_t i = 0; i < n; ++i) {
        r.dx[row * n + i] += d * w[v * n + i];
        r.dweight[v * n + i] += d * x[row * n + i];
      }
    }
  }
  return r;
}

double difference(const Tensor& a, const Values& b) {
  const Values values = to_doubles(a);
  REQUIRE(values.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    most = std::max(most, std::abs(values[i] - b[i]));
  }
  return most;
}

/// Hears how many elements the largest result has.
class Largest final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    for (const Tensor& x : out) {
      elements = std::max(elements, x ? x.numel() : 0);
    }
    return out;
  }
  std::int64_t elements = 0;
};

nn::DecoderShape small_shape() {
  return {.vocab = 97,
          .dim = 8,
          .layers = 1,
          .heads = 2,
          .kv_heads = 1,
          .ffn_dim = 6,
          .tie_embeddings = true,
          .logit_softcap = 3,
          .standard_deviation = 0.4,
          .dtype = DType::f64};
}

}  // namespace

TEST_CASE("a product and its loss in parts are the loops over their formulas") {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f64, 1e-13}, {DType::f32, 2e-6}, {DType::bf16, 3e-2}}) {
    for (const bool bias : {false, true}) {
      for (const double softcap : {0.0, 2.0}) {
        const Case c = case_of(dtype, bias);
        const Loops expected = loops(c, softcap);
        for (const std::int64_t rows : {0, 1, 4, 6, 14}) {
          INFO(name_of(dtype) << (bias ? " with bias" : "") << ", softcap " << softcap << ", "
                              << rows << " rows");
          const Outcome got = in_parts(c, rows, softcap);
          CHECK(difference(got.losses, expected.losses) < tolerance);
          CHECK(difference(got.dx, expected.dx) < tolerance);
          CHECK(difference(got.dweight, expected.dweight) < tolerance);
          if (bias) {
            CHECK(difference(got.dbias, expected.dbias) < tolerance);
          }
        }
      }
    }
  }
}

TEST_CASE("one part has the bits of the whole form") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const double softcap : {0.0, 2.0}) {
      INFO(name_of(dtype) << ", softcap " << softcap);
      const Case c = case_of(dtype, true);
      const Outcome a = in_parts(c, batch * tokens, softcap);
      const Outcome b = whole(c, softcap);
      CHECK(to_doubles(a.losses) == to_doubles(b.losses));
      CHECK(to_doubles(a.dx) == to_doubles(b.dx));
      CHECK(to_doubles(a.dweight) == to_doubles(b.dweight));
      CHECK(to_doubles(a.dbias) == to_doubles(b.dbias));
    }
  }
}

TEST_CASE("the gradient of a weight of 16 bits is summed over parts in f32") {
  // 512 parts, each with the same gradient: a sum of 16 bits would stop growing at 256 of them.
  constexpr std::int64_t rows = 512;
  const std::vector<std::int64_t> zeros(rows, 0);
  Case c;
  c.x = ops::cast(full({1, rows, 1}, 1, DType::f32), DType::bf16);
  c.weight = ops::cast(full({2, 1}, 0, DType::f32), DType::bf16);
  c.targets = from_values(std::span<const std::int64_t>(zeros), {1, rows});
  c.dlosses = full({1, rows}, 1, DType::f32);
  const Outcome got = in_parts(c, 1, 0);
  CHECK(to_doubles(got.dweight) == Values{-256, 256});
}

TEST_CASE("no tensor of all logits exists, in forward and in backward") {
  for (const std::int64_t rows : {1, 2, 4}) {
    const Case c = case_of(DType::f32, false);
    Largest largest;
    {
      const ModeScope scope(ModeLevel::above_distribution, largest);
      in_parts(c, rows, 0);
    }
    INFO(rows << " rows");
    // At least one place of the dim that is cut: a row of each entry of the batch.
    CHECK(largest.elements ==
          std::max({std::max(rows, batch) * classes, batch * tokens * in, classes * in}));
  }
}

TEST_CASE("only the gradients that are needed are computed, and without them nothing is kept") {
  const Case c = case_of(DType::f64, false);
  Tensor x = ops::clone(c.x);
  const Tensor weight = ops::clone(c.weight);
  x.set_requires_grad();
  const auto losses = [&] {
    return nn::linear_cross_entropy(x, weight, {}, c.targets, {.rows = 3, .ignore_index = ignored});
  };
  backward(std::vector<Tensor>{losses()}, std::vector<Tensor>{c.dlosses});
  CHECK(difference(x.grad(), loops(c, 0).dx) < 1e-13);
  CHECK(!weight.grad());
  const NoGrad no_grad;
  CHECK(!losses().requires_grad());
}

TEST_CASE("a model's losses do not depend on how many logits exist at once") {
  const std::shared_ptr<nn::LanguageModel> model = std::make_shared<nn::DecoderLM>(small_shape());
  set_seed(3);
  nn::materialize(*model);
  nn::initialize(*model);
  std::vector<std::int64_t> ids(30);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i * 31 % 97);
  }
  const Tensor given = from_values(std::span<const std::int64_t>(ids), {3, 10});
  ids[7] = -100;
  const Tensor targets = from_values(std::span<const std::int64_t>(ids), {3, 10});
  std::vector<Values> expected;
  for (const std::int64_t rows : {0, 1, 9, 1000}) {
    model->set_head_rows(rows);
    std::vector<Values> got{to_doubles(detached(model->token_losses(given, targets)))};
    const Tensor loss = model->loss_sum(given, targets);
    got.push_back(to_doubles(detached(loss)));
    backward(loss);
    for (const nn::ParameterPointer& p : nn::all_parameters(*model)) {
      got.push_back(to_doubles(p->value.grad()));
      p->value.grad() = Tensor();
    }
    if (rows == 0) {
      expected = got;
    }
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO(rows << " rows, value " << i);
      REQUIRE(got[i].size() == expected[i].size());
      double most = 0;
      for (std::size_t j = 0; j < got[i].size(); ++j) {
        most = std::max(most, std::abs(got[i][j] - expected[i][j]));
      }
      CHECK(most < 1e-12);
    }
  }
}

TEST_CASE("conversions of logits leave losses alone, and other hooks get the losses") {
  nn::DecoderLM model(small_shape());
  set_seed(3);
  nn::materialize(model);
  nn::initialize(model);
  const Tensor ids = from_values<std::int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Values expected = to_doubles(detached(model.token_losses(ids, ids)));
  int heard = 0;
  for (nn::Module* const module : nn::all_modules(model)) {
    if (module->name() == "lm_head" || module->name().empty()) {
      nn::add_conversion(*module, [](nn::Module&, const Tensors&, Tensors& outputs) {
        outputs[0] = ops::mul_scalar(outputs[0], 0);
      });
      module->add_hook([&](nn::Module&, const Tensors&, Tensors& outputs) {
        heard += to_string(outputs[0].shape()) == to_string(ids.shape()) ? 1 : 0;
      });
    }
  }
  CHECK(to_doubles(detached(model(ids))) == Values(6 * 97, 0.0));  // they run where forward does
  CHECK(heard == 0);
  model.set_head_rows(2);
  const Values got = to_doubles(detached(model.token_losses(ids, ids)));
  CHECK(heard == 2);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(std::abs(got[i] - expected[i]) < 1e-12);
  }
}

namespace {

/// A family that says nothing of its head.
class Headless final : public nn::LanguageModel {
 public:
  Headless() : nn::LanguageModel(0) { complete(); }
  std::string_view kind() const override { return "Headless"; }
  Tensors forward(const Tensors& inputs) override { return inputs; }
  void set_activation_checkpointing(bool) override {}
};

/// A layer that another one has become.
class Twice final : public nn::Module {
 public:
  explicit Twice(std::shared_ptr<nn::Module> layer) { attach("layer", std::move(layer)); }
  std::string_view kind() const override { return "Twice"; }
  Tensors forward(const Tensors& inputs) override {
    return {ops::mul_scalar((*children()[0].second)(inputs[0]), 2)};
  }
};

}  // namespace

TEST_CASE("what has no logits in parts is refused") {
  Headless headless;
  headless.set_head_rows(0);
  CHECK(error_of([&] { headless.set_head_rows(4); }) ==
        "head_rows: the family of Headless does not say which layer is its head, so its logits "
        "cannot be computed in parts; set it to 0");
  nn::DecoderLM model(small_shape());
  CHECK(error_of([&] { model.set_head_rows(-1); }) ==
        "head_rows: it is negative (expected at least 0, got -1)");
  nn::replace_modules(model, "lm_head", [](const std::shared_ptr<nn::Module>& before) {
    return std::make_shared<Twice>(before);
  });
  model.set_head_rows(4);
  nn::materialize(model);
  const Tensor ids = from_values<std::int64_t>({1, 2, 3}, {1, 3});
  CHECK(error_of([&] { model.loss_sum(ids, ids); })
            .find("module 'lm_head': its logits cannot be computed in parts (expected a Linear, "
                  "got Twice)") != std::string::npos);
}

TEST_CASE("backward in parts has no gradient of its own") {
  const Case c = case_of(DType::f64, false);
  Tensor x = ops::clone(c.x);
  x.set_requires_grad();
  const Tensor losses =
      nn::linear_cross_entropy(x, c.weight, {}, c.targets, {.rows = 3, .ignore_index = ignored});
  const std::string error = error_of([&] {
    gradients(std::vector<Tensor>{losses}, std::vector<Tensor>{c.dlosses}, std::vector<Tensor>{x},
              {.create_graph = true});
  });
  CHECK(error.find("linear_cross_entropy: its gradient cannot be differentiated again") !=
        std::string::npos);
}
