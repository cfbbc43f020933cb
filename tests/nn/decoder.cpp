// Decoders against loops over their formulas.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

using namespace tessera;

namespace {

using Values = std::vector<double>;

nn::DecoderShape small_shape() {
  return {.vocab = 13,
          .dim = 8,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .ffn_dim = 6,
          .standard_deviation = 0.4,
          .dtype = DType::f64};
}

double largest(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference;
}

/// rows x in, times weight [out, in] transposed.
Values product(const Values& x, const nn::Module& module, std::size_t in) {
  const Values w = to_doubles(module.parameter("weight")->value);
  const std::size_t out = w.size() / in;
  Values y;
  for (std::size_t row = 0; row < x.size() / in; ++row) {
    for (std::size_t o = 0; o < out; ++o) {
      double sum = 0;
      for (std::size_t i = 0; i < in; ++i) {
        sum += x[row * in + i] * w[o * in + i];
      }
      y.push_back(sum);
    }
  }
  return y;
}

nn::Module& child(nn::Module& module, const std::string& name) {
  for (const auto& [key, below] : module.children()) {
    if (key == name) {
      return *below;
    }
  }
  FAIL("no child " << name);
  return module;
}

Values normed(const Values& x, const nn::Module& norm, double eps) {
  const Values weight = to_doubles(norm.parameter("weight")->value);
  const std::size_t dim = weight.size();
  Values y;
  for (std::size_t row = 0; row < x.size() / dim; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      squares += x[row * dim + i] * x[row * dim + i];
    }
    for (std::size_t i = 0; i < dim; ++i) {
      y.push_back(x[row * dim + i] / std::sqrt(squares / static_cast<double>(dim) + eps) *
                  weight[i]);
    }
  }
  return y;
}

/// Rotates the first half of each head with its second half, by the position.
void rotate(Values& x, std::size_t heads, std::size_t d, double theta) {
  const std::size_t positions = x.size() / (heads * d);
  for (std::size_t t = 0; t < positions; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < d / 2; ++i) {
        const double angle = static_cast<double>(t) *
                             std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(d));
        double& a = x[(t * heads + h) * d + i];
        double& b = x[(t * heads + h) * d + i + d / 2];
        const double first = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = first;
      }
    }
  }
}

/// One sequence [T, dim].
Values attention(const Values& x, nn::Module& module, const nn::DecoderShape& shape) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dim = static_cast<std::size_t>(shape.dim);
  const auto d = static_cast<std::size_t>(shape.head_extent());
  Values q = product(x, child(module, "q_proj"), dim);
  Values k = product(x, child(module, "k_proj"), dim);
  const Values v = product(x, child(module, "v_proj"), dim);
  rotate(q, heads, d, shape.rope_theta);
  rotate(k, kv_heads, d, shape.rope_theta);
  const std::size_t positions = x.size() / dim;
  Values attended(positions * heads * d, 0.0);
  for (std::size_t t = 0; t < positions; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t group = h * kv_heads / heads;
      Values weights;
      double sum = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        double score = 0;
        for (std::size_t i = 0; i < d; ++i) {
          score += q[(t * heads + h) * d + i] * k[(s * kv_heads + group) * d + i];
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        sum += weights.back();
      }
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t i = 0; i < d; ++i) {
          attended[(t * heads + h) * d + i] += weights[s] / sum * v[(s * kv_heads + group) * d + i];
        }
      }
    }
  }
  return product(attended, child(module, "o_proj"), heads * d);
}

Values mlp(const Values& x, nn::Module& module, std::size_t dim, std::size_t ffn) {
  Values gate = product(x, child(module, "gate_proj"), dim);
  const Values up = product(x, child(module, "up_proj"), dim);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  }
  return product(gate, child(module, "down_proj"), ffn);
}

Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] += b[i];
  }
  return a;
}

/// The logits of one sequence.
Values logits(nn::DecoderLM& model, const std::vector<std::int64_t>& tokens) {
  const nn::DecoderShape& shape = model.shape();
  const auto dim = static_cast<std::size_t>(shape.dim);
  nn::Module& body = child(model, "model");
  const Values table = to_doubles(child(body, "embed_tokens").parameter("weight")->value);
  Values x;
  for (const std::int64_t token : tokens) {
    for (std::size_t i = 0; i < dim; ++i) {
      x.push_back(table[static_cast<std::size_t>(token) * dim + i]);
    }
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    nn::Module& block = child(body, "layers." + std::to_string(layer));
    x = plus(x, attention(normed(x, child(block, "input_layernorm"), shape.norm_eps),
                          child(block, "self_attn"), shape));
    x = plus(x, mlp(normed(x, child(block, "post_attention_layernorm"), shape.norm_eps),
                    child(block, "mlp"), dim, static_cast<std::size_t>(shape.ffn_dim)));
  }
  return product(normed(x, child(body, "norm"), shape.norm_eps), child(model, "lm_head"), dim);
}

std::shared_ptr<nn::DecoderLM> filled(const nn::DecoderShape& shape) {
  auto model = std::make_shared<nn::DecoderLM>(shape);
  set_seed(11);
  nn::materialize(*model);
  nn::initialize(*model);
  return model;
}

Tensor batch(const std::vector<std::int64_t>& tokens) {
  return from_values(std::span<const std::int64_t>(tokens),
                     {1, static_cast<std::int64_t>(tokens.size())});
}

const std::vector<std::int64_t> sequence = {3, 12, 0, 7, 7, 1};

}  // namespace

TEST_CASE("a Llama computes its formulas") {
  for (const bool tied : {false, true}) {
    nn::DecoderShape shape = small_shape();
    shape.tie_embeddings = tied;
    const auto model = filled(shape);
    const Tensor out = (*model)(batch(sequence));
    CHECK(out.shape() == Dims{1, 6, 13});
    CHECK(largest(to_doubles(out), logits(*model, sequence)) < 1e-12);
  }
}

TEST_CASE("a head_dim that is not dim / heads is used as it is given") {
  nn::DecoderShape shape = small_shape();
  shape.head_dim = 6;
  const auto model = filled(shape);
  CHECK(largest(to_doubles((*model)(batch(sequence))), logits(*model, sequence)) < 1e-12);
}

namespace {

/// The logits of tokens that are read with a cache, so many at a time.
Values in_parts(nn::DecoderLM& model, const std::vector<std::int64_t>& tokens,
                const std::vector<std::size_t>& counts) {
  nn::KeyValueCache cache;
  model.set_cache(&cache);
  const NoGrad no_grad;
  Values parts;
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    const Values out = to_doubles(
        model(batch(std::vector<std::int64_t>(first, first + static_cast<std::ptrdiff_t>(count)))));
    parts.insert(parts.end(), out.begin(), out.end());
    begin += count;
  }
  REQUIRE(begin == tokens.size());
  CHECK(cache.length() == std::ssize(tokens));
  model.set_cache(nullptr);
  return parts;
}

}  // namespace

TEST_CASE("with a cache, tokens that come in parts have the logits of the whole sequence") {
  const auto model = filled(small_shape());
  std::vector<std::int64_t> tokens(600);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int64_t>(i * i % 13);
  }
  const Values whole = to_doubles((*model)(batch(tokens)));
  // The cache grows within a part, exactly at its end, and by one token.
  CHECK(largest(in_parts(*model, tokens, {3, 1, 252, 1, 255, 1, 1, 86}), whole) < 1e-11);
}

TEST_CASE(
    "latent features in a cache have the logits of the keys and values that are made of them") {
  nn::DecoderShape shape = small_shape();
  shape.kv_heads = shape.heads;
  shape.latent_rank = 8;
  shape.plain_dim = 4;
  shape.rotated_dim = 2;
  shape.value_dim = 5;
  const auto model = filled(shape);
  const std::vector<std::int64_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7};
  const Values whole = to_doubles((*model)(batch(tokens)));
  CHECK(largest(in_parts(*model, tokens, {5, 1, 1, 4, 3}), whole) < 1e-11);
}

TEST_CASE("windows, caps and norms of heads are the same with a cache") {
  nn::DecoderShape shape{.vocab = 23,
                         .dim = 16,
                         .layers = 3,
                         .heads = 4,
                         .kv_heads = 2,
                         .ffn_dim = 12,
                         .rope_scaling = {.kind = ops::RotaryScaling::Kind::llama3,
                                          .factor = 4,
                                          .original_positions = 16},
                         .local_rope_theta = 100,
                         .query_key_norm = nn::HeadNorm::shared,
                         .score_dim = 3,
                         .attention_softcap = 0.5,
                         .window = 7,
                         .global_every = 2,
                         .norm_offset = true,
                         .norm_results = true,
                         .activation = nn::Activation::gelu_tanh,
                         .scale_embeddings = true,
                         .logit_softcap = 0.8,
                         .standard_deviation = 0.3,
                         .dtype = DType::f64};
  CHECK(shape.has_window(0));
  CHECK(!shape.has_window(1));
  CHECK(shape.has_window(2));
  const auto model = filled(shape);
  std::vector<std::int64_t> tokens(40);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int64_t>(i * i % 23);
  }
  const Values whole = to_doubles((*model)(batch(tokens)));
  CHECK(largest(in_parts(*model, tokens, {5, 1, 1, 8, 1, 20, 4}), whole) < 1e-12);
}

namespace {

/// A mixture by its formula: hidden_states [tokens, dim] of a module with its parameters.
Values mixture(const Values& x, nn::Module& module, const nn::MixtureOptions& options) {
  const auto dim = static_cast<std::size_t>(options.expert.dim);
  const auto width = static_cast<std::size_t>(options.expert.width);
  const auto experts = static_cast<std::size_t>(options.experts);
  const nn::Module& own = child(module, "experts");
  const auto matrix = [&](const char* name) { return to_doubles(own.parameter(name)->value); };
  const Values gate = matrix("gate_proj");
  const Values up = matrix("up_proj");
  const Values down = matrix("down_proj");
  const Values scores = product(x, child(module, "gate"), dim);
  Values y(x.size(), 0);
  for (std::size_t token = 0; token < x.size() / dim; ++token) {
    std::vector<std::pair<double, std::size_t>> order;
    double sum = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      order.emplace_back(-std::exp(scores[token * experts + e]), e);
      sum -= order.back().first;
    }
    std::sort(order.begin(), order.end());
    order.resize(static_cast<std::size_t>(options.experts_per_token));
    if (options.normalize) {
      sum = 0;
      for (const auto& one : order) {
        sum -= one.first;
      }
    }
    for (const auto& [negative, e] : order) {
      for (std::size_t f = 0; f < width; ++f) {
        double g = 0;
        double u = 0;
        for (std::size_t i = 0; i < dim; ++i) {
          g += gate[(e * width + f) * dim + i] * x[token * dim + i];
          u += up[(e * width + f) * dim + i] * x[token * dim + i];
        }
        const double weighted = -negative / sum * u * g / (1 + std::exp(-g));
        for (std::size_t i = 0; i < dim; ++i) {
          y[token * dim + i] += weighted * down[(e * dim + i) * width + f];
        }
      }
    }
  }
  return y;
}

}  // namespace

TEST_CASE("a mixture of experts computes its formula, also where experts have no tokens") {
  for (const bool normalize : {true, false}) {
    for (const std::int64_t tokens : {7, 1}) {  // one token leaves experts without any
      nn::DecoderShape shape = small_shape();
      shape.experts = 5;
      shape.experts_per_token = 3;
      shape.expert_dim = 4;
      shape.normalize_experts = normalize;
      nn::SparseMixture module(shape.mixture());
      module.set_names();
      nn::materialize(module);
      set_seed(7);
      nn::initialize(module);
      Values x;
      for (std::int64_t i = 0; i < tokens * shape.dim; ++i) {
        x.push_back(std::sin(static_cast<double>(i * i)));
      }
      const Tensor y = module(from_values(std::span<const double>(x), {tokens, shape.dim}));
      CHECK(largest(to_doubles(y), mixture(x, module, shape.mixture())) < 1e-13);
    }
  }
}

TEST_CASE("a decoder's table says which layers have experts") {
  nn::DecoderShape shape = small_shape();
  shape.layers = 6;
  shape.experts_per_token = 2;
  const auto layers = [&] {
    std::string found;
    nn::DecoderLM model(shape);
    for (const nn::Module* module : nn::all_modules(model)) {
      found += module->kind() == "SparseMixture" ? module->name().substr(13, 1) : "";
    }
    return found;
  };
  CHECK(layers().empty());
  shape.experts = 4;
  CHECK(layers() == "012345");
  shape.experts_every = 2;
  CHECK(layers() == "135");
  shape.dense_layers = {3, 4};
  CHECK(layers() == "15");
}

TEST_CASE("activation checkpointing changes no gradient") {
  nn::DecoderShape shape = small_shape();
  shape.dropout = 0.2;
  std::map<std::string, Values> expected;
  for (const bool checkpointing : {false, true}) {
    const auto model = filled(shape);
    model->set_activation_checkpointing(checkpointing);
    const Tensor targets = batch({12, 0, 7, 7, 1, 3});
    backward(model->loss()({(*model)(batch(sequence)), targets})[0]);
    for (const nn::ParameterPointer& p : nn::all_parameters(*model)) {
      REQUIRE(p->value.grad().defined());
      const Values gradient = to_doubles(p->value.grad());
      if (checkpointing) {
        CHECK(largest(gradient, expected.at(p->name)) < 1e-13);
      } else {
        expected[p->name] = gradient;
      }
    }
  }
}

TEST_CASE("a Llama has Hugging Face's names, and a tied head is the embedding") {
  nn::DecoderShape shape = small_shape();
  shape.layers = 1;
  std::vector<std::string> names;
  nn::DecoderLM model(shape);
  for (const nn::ParameterPointer& p : nn::all_parameters(model)) {
    names.push_back(p->name);
  }
  CHECK(names == std::vector<std::string>{
                     "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                     "model.layers.0.self_attn.k_proj.weight",
                     "model.layers.0.self_attn.v_proj.weight",
                     "model.layers.0.self_attn.o_proj.weight",
                     "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                     "model.layers.0.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight",
                     "model.layers.0.post_attention_layernorm.weight", "model.norm.weight",
                     "lm_head.weight"});
  shape.tie_embeddings = true;
  nn::DecoderLM tied(shape);
  CHECK(nn::all_parameters(tied).size() == names.size() - 1);
  CHECK(child(tied, "lm_head").parameter("weight") ==
        child(child(tied, "model"), "embed_tokens").parameter("weight"));
}

namespace {

/// Two documents in one row.
struct Row {
  Tensor tokens;
  nn::RowDocuments documents;
};

Row row_of(const std::vector<std::int64_t>& first, const std::vector<std::int64_t>& second) {
  std::vector<std::int64_t> tokens = first;
  tokens.insert(tokens.end(), second.begin(), second.end());
  std::vector<std::int64_t> begins(first.size(), 0);
  begins.insert(begins.end(), second.size(), std::ssize(first));
  std::vector<std::int64_t> positions;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    positions.push_back(static_cast<std::int64_t>(i) - begins[i]);
  }
  return {batch(tokens), {.first = batch(begins), .positions = batch(positions)}};
}

/// The loss of the second document, and the gradients of all parameters.
struct Trained {
  Values loss;
  std::map<std::string, Values> gradients;
};

Trained trained(const nn::DecoderShape& shape, const Row& row, std::size_t from,
                bool checkpointing = false) {
  const auto model = filled(shape);
  model->set_activation_checkpointing(checkpointing);
  std::vector<std::int64_t> targets(static_cast<std::size_t>(row.tokens.numel()), -100);
  for (std::size_t i = from; i < targets.size(); ++i) {
    targets[i] = static_cast<std::int64_t>(i * 5 % 13);
  }
  const Tensor loss = model->loss_sum(row.tokens, batch(targets), row.documents);
  backward(loss);
  Trained all{to_doubles(loss), {}};
  for (const nn::ParameterPointer& p : nn::all_parameters(*model)) {
    all.gradients[p->name] = to_doubles(p->value.grad());
  }
  return all;
}

}  // namespace

TEST_CASE("the loss of a document is bit-identical whatever document is beside it") {
  const auto with = [](DType dtype, std::int64_t experts) {
    nn::DecoderShape shape = small_shape();
    shape.query_key_norm = nn::HeadNorm::shared;
    shape.dtype = dtype;
    shape.experts = experts;
    shape.experts_per_token = 2;
    return shape;
  };
  for (const auto& shape :
       {with(DType::f32, 0), with(DType::f64, 0), with(DType::bf16, 0), with(DType::f32, 4)}) {
    const std::vector<std::int64_t> second = {3, 12, 0, 7, 7, 1, 9, 2, 4};
    Row row = row_of({5, 6, 1, 1, 10}, second);
    const Trained one = trained(shape, row, 5);
    const Trained other = trained(shape, row_of({0, 2, 11, 8, 3}, second), 5);
    CHECK(one.loss == other.loss);
    for (const auto& [name, gradient] : one.gradients) {
      INFO(name);
      // The rows of an expert are summed where the other document's rows leave them.
      CHECK(largest(gradient, other.gradients.at(name)) <= (shape.experts > 0 ? 1e-6 : 0));
    }
    row.documents = {};
    CHECK(one.loss != trained(shape, row, 5).loss);
  }
}

TEST_CASE("a packed document has the logits that it has alone") {
  nn::DecoderShape shape = small_shape();
  shape.window = 3;
  shape.global_every = 2;
  shape.attention_softcap = 2;
  shape.local_rope_theta = 100;
  const auto model = filled(shape);
  const std::vector<std::int64_t> second = {3, 12, 0, 7, 7, 1, 9};
  const Row row = row_of({5, 6, 1, 1, 10}, second);
  const Values packed =
      to_doubles((*model)({row.tokens, row.documents.first, row.documents.positions})[0]);
  const Values alone = to_doubles((*model)(batch(second)));
  CHECK(largest({packed.begin() + 5 * 13, packed.end()}, alone) < 1e-13);
  CHECK(largest({packed.begin(), packed.begin() + 5 * 13},
                to_doubles((*model)(batch({5, 6, 1, 1, 10})))) < 1e-13);
}

TEST_CASE("packed documents are recomputed with their documents") {
  const Row row = row_of({5, 6, 1, 1, 10}, {3, 12, 0, 7, 7, 1, 9});
  const Trained plain = trained(small_shape(), row, 0);
  const Trained again = trained(small_shape(), row, 0, true);
  CHECK(plain.loss == again.loss);
  for (const auto& [name, gradient] : plain.gradients) {
    CHECK(largest(gradient, again.gradients.at(name)) < 1e-13);
  }
}
