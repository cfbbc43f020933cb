// Models whose layers keep codes: what they compute, alone and among others.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "on_ranks.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.coded;
import tessera.text;

using namespace tessera;
using coded::Activations;
using coded::WeightForm;

namespace {

constexpr std::int64_t vocab = 43;

nn::DecoderShape shape_of(bool tied) {
  return {.vocab = vocab,
          .dim = 64,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .ffn_dim = 256,
          .tie_embeddings = tied,
          .standard_deviation = 0.3};
}

/// Experts as those of gpt-oss: with biases, limits, and one of all tokens besides.
nn::DecoderShape experts_shape() {
  nn::DecoderShape shape = shape_of(true);
  shape.experts = 5;
  shape.experts_per_token = 2;
  shape.expert_dim = 256;
  shape.shared_expert_dim = 32;
  shape.expert_form.bias = true;
  shape.expert_form.limits.most = 2;
  return shape;
}

/// The same values in each form.
std::shared_ptr<nn::DecoderLM> filled(const nn::DecoderShape& shape, WeightForm form,
                                      Activations activations = Activations::f32) {
  auto model = std::make_shared<nn::DecoderLM>(shape);
  text::set_weight_form(*model, form, 1, nullptr, activations);
  set_seed(3);
  nn::materialize(*model);
  nn::initialize(*model);
  model->train(false);
  return model;
}

std::shared_ptr<nn::DecoderLM> filled(WeightForm form, bool tied = true,
                                      Activations activations = Activations::f32) {
  return filled(shape_of(tied), form, activations);
}

using Logits = std::vector<std::vector<double>>;

/// The logits of the tokens that an engine's texts continue with.
std::vector<Logits> continued(nn::LanguageModel& model, const std::vector<std::int64_t>& lengths,
                              std::optional<DType> keys = std::nullopt, std::int64_t guesses = 0) {
  text::ModelRanks ranks(model, nullptr, {}, -1, keys);
  text::Engine engine(ranks, vocab, {.prompt_tokens = 7, .guesses = guesses});
  std::vector<Logits> all(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    std::vector<std::int64_t> prompt;
    for (std::int64_t t = 0; t < lengths[i]; ++t) {
      prompt.push_back((t * t + 5 * lengths[i]) % vocab);
    }
    engine.submit({.prompt = prompt,
                   .tokens = 6,
                   .next =
                       [&all, i](const std::vector<double>& logits) {
                         all[i].push_back(logits);
                         const auto largest = std::ranges::max_element(logits);
                         return std::optional(largest - logits.begin());
                       },
                   .ended = nullptr});
  }
  while (engine.step()) {
  }
  return all;
}

constexpr WeightForm forms[] = {WeightForm::bf16, WeightForm::int8, WeightForm::q8_0,
                                WeightForm::q4_0, WeightForm::q4_k, WeightForm::q6_k};

std::string kind_of(nn::Module& model, const std::string& name) {
  for (nn::Module* const module : nn::all_modules(model)) {
    if (module->name() == name) {
      return std::string(module->kind());
    }
  }
  return "";
}

/// An embedding and two products, whose weights are in these codes.
class Layers final : public nn::Module {
 public:
  explicit Layers(coded::CodeType type)
      : embed_(add_child<nn::Embedding>("embed", 13, 64, 0.5)),
        wide_(add_child<nn::Linear>("wide", 64, 128, true, 0.3)),
        narrow_(add_child<nn::Linear>("narrow", 128, 32, true, 0.3)) {
    set_names();
    coded::use_codes(*this, [&](const coded::CodableWeight&) { return std::optional(type); });
    set_seed(5);
    nn::materialize(*this);
    nn::initialize(*this);
    for (const nn::Child& layer : {wide_, narrow_}) {
      layer->parameter("bias")->value =
          full(layer->parameter("bias")->value.shape(), 0.5, DType::f32);
    }
  }
  std::string_view kind() const override { return "Layers"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*narrow_)((*wide_)((*embed_)(inputs[0])))};
  }

  /// The ranks of the mesh have parts of the layers, as styles give them.
  void split(const DeviceMesh& mesh) {
    for (const auto& [layer, name] :
         {std::pair(embed_, "rows"), std::pair(wide_, "columns"), std::pair(narrow_, "rows")}) {
      const nn::LayerSplit split = nn::split_of(*layer, name);
      for (const auto& [own, parameter] : layer->parameters()) {
        Placement placement = Replicate();
        for (const auto& [of_split, there] : split.parameters) {
          placement = of_split == parameter ? there : placement;
        }
        parameter->value = distribute(parameter->value, Layout::make(mesh, {placement}));
      }
      nn::check_placements(*layer, std::vector<int>{0});
    }
  }

 private:
  nn::Child embed_;
  nn::Child wide_;
  nn::Child narrow_;
};

/// Experts alone, whose matrices are in these codes, or plain.
class ExpertLayers final : public nn::Module {
 public:
  explicit ExpertLayers(std::optional<coded::CodeType> type, std::int64_t width = 128)
      : experts_(add_child<nn::Experts>("experts", options(width))) {
    set_names();
    coded::use_codes(*this, [&](const coded::CodableWeight&) { return type; });
    set_seed(5);
    nn::materialize(*this);
    nn::initialize(*this);
    double value = 0.1;
    for (const auto& [name, parameter] : experts_->parameters()) {
      if (name.ends_with("_bias")) {
        parameter->value = full(parameter->value.shape(), value, DType::f32);
        value += 0.3;
      }
    }
  }
  std::string_view kind() const override { return "ExpertLayers"; }
  Tensors forward(const Tensors& inputs) override { return {(*experts_)(inputs)[0]}; }

  void split(const DeviceMesh& mesh, std::string_view name) {
    const nn::LayerSplit split = nn::split_of(*experts_, name);
    for (const auto& [own, parameter] : experts_->parameters()) {
      Placement placement = Replicate();
      for (const auto& [of_split, there] : split.parameters) {
        placement = of_split == parameter ? there : placement;
      }
      parameter->value = distribute(parameter->value, Layout::make(mesh, {placement}));
    }
    nn::check_placements(*experts_, std::vector<int>{0});
  }
  nn::Module& experts() { return *experts_; }

 private:
  static nn::MixtureOptions options(std::int64_t width) {
    return {.expert = {.dim = 64, .width = width, .bias = true, .standard_deviation = 0.3},
            .experts = 4,
            .experts_per_token = 2};
  }
  nn::Child experts_;
};

/// Hidden states of six tokens, and the experts of each.
struct Routed {
  Tensor hidden = random();
  Tensor weights = from_values(std::span(shares()), {6, 2});
  Tensor chosen = from_values(std::span(numbers()), {6, 2});

  static Tensor random() {
    set_seed(9);
    const Tensor x = empty({6, 64}, DType::f32);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      x.data<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i * i % 97)));
    }
    return x;
  }
  static const std::vector<float>& shares() {
    static const std::vector<float> all = {0.5F, 0.5F, 0.9F, 0.1F, 0.3F, 0.7F,
                                           0.2F, 0.8F, 1,    0,    0.4F, 0.6F};
    return all;
  }
  /// None chooses expert 2.
  static const std::vector<std::int64_t>& numbers() {
    static const std::vector<std::int64_t> all = {0, 1, 3, 0, 1, 3, 0, 3, 1, 0, 3, 1};
    return all;
  }
};

}  // namespace

TEST_CASE("experts in codes compute what their decoded matrices do") {
  const NoGrad no_grad;
  const Routed in;
  for (const coded::CodeType type :
       {coded::CodeType::q8_0, coded::CodeType::q4_0, coded::CodeType::int8, coded::CodeType::bf16,
        coded::CodeType::f16}) {
    INFO("type " << static_cast<int>(type));
    ExpertLayers in_codes(type);
    CHECK(in_codes.experts().kind() == "CodedExperts");
    ExpertLayers plain(std::nullopt);
    CHECK(plain.experts().kind() == "Experts");
    for (const auto& [name, parameter] : plain.experts().parameters()) {
      if (parameter->value.dims() != 3) {
        continue;
      }
      const Tensor codes = in_codes.experts().parameter(name + "_codes")->value;
      const Dims shape = parameter->value.shape();
      const Tensor decoded = coded::decoded(
          {.type = type,
           .codes = ops::reshape(codes, {shape[0] * shape[1], codes.size(2)}),
           .scales = type == coded::CodeType::int8
                         ? ops::reshape(in_codes.experts().parameter(name + "_scales")->value,
                                        {shape[0] * shape[1]})
                         : Tensor()});
      const std::vector<double> before = to_doubles(parameter->value);
      const std::vector<double> after = to_doubles(decoded);
      double largest = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        largest = std::max(largest, std::abs(before[i] - after[i]));
      }
      CHECK(largest > 0);
      CHECK(largest < (type == coded::CodeType::q4_0 ? 0.2 : 0.01));
      ops::copy_(parameter->value, ops::reshape(decoded, shape));
    }
    const std::vector<double> expected =
        to_doubles(plain(Tensors{in.hidden, in.weights, in.chosen})[0]);
    const std::vector<double> got =
        to_doubles(in_codes(Tensors{in.hidden, in.weights, in.chosen})[0]);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(std::abs(got[i] - expected[i]) < 2e-5);
    }
  }
}

TEST_CASE("experts in codes that ranks have in parts compute the same") {
  const NoGrad no_grad;
  for (const coded::CodeType type : {coded::CodeType::q8_0, coded::CodeType::q4_0,
                                     coded::CodeType::int8, coded::CodeType::bf16}) {
    const Routed in;
    const std::vector<double> whole =
        to_doubles(ExpertLayers(type)(Tensors{in.hidden, in.weights, in.chosen})[0]);
    for (const std::string split : {"experts", "rows"}) {
      INFO(split << ", type " << static_cast<int>(type));
      testing::on_ranks(2, [&](int) {
        const NoGrad own;
        const DeviceMesh mesh = DeviceMesh::make({"ranks"}, {2});
        ExpertLayers layers(type);
        layers.split(mesh, split);
        // Experts are split where tokens are.
        const Placement tokens = split == "experts" ? Placement(Shard(0)) : Placement(Replicate());
        const auto placed = [&](const Tensor& x) {
          return distribute(x, Layout::make(mesh, {tokens}));
        };
        const Tensors inputs{placed(in.hidden), placed(in.weights), placed(in.chosen)};
        const std::vector<double> parts = to_doubles(full_tensor(layers(inputs)[0]));
        testing::check(parts.size() == whole.size(), "the shape");
        for (std::size_t i = 0; i < whole.size(); ++i) {
          testing::check(std::abs(parts[i] - whole[i]) < 1e-4, "an element");
        }
      });
    }
  }
  // Half of 32 columns is no whole block.
  testing::on_ranks(2, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"ranks"}, {2});
    ExpertLayers layers(coded::CodeType::q8_0, 32);
    const std::string refused = testing::error_of([&] { layers.split(mesh, "rows"); });
    testing::check(testing::contains(refused, "module 'experts'"), "the module's name");
    testing::check(testing::contains(refused, "cuts blocks of 32"), "what is cut");
  });
}

TEST_CASE("texts of experts in codes have the same bits alone and among many") {
  const NoGrad no_grad;
  for (const WeightForm form : forms) {
    for (const Activations activations : {Activations::f32, Activations::int8}) {
      if (form == WeightForm::bf16 && activations == Activations::int8) {
        continue;
      }
      INFO(coded::weight_form_names()[static_cast<std::size_t>(form)]);
      const auto model = filled(experts_shape(), form, activations);
      CHECK(kind_of(*model, "model.layers.1.mlp.experts") == "CodedExperts");
      std::vector<std::int64_t> lengths;
      for (std::int64_t i = 0; i < 64; ++i) {
        lengths.push_back(1 + i * 7 % 13);
      }
      const std::vector<Logits> together = continued(*model, lengths);
      for (const std::size_t i : {0, 5, 63}) {
        CHECK(continued(*model, {lengths[i]})[0] == together[i]);
      }
      CHECK(continued(*model, {3, 9}, std::nullopt, 6)[1] == continued(*model, {9})[0]);
    }
  }
}

TEST_CASE("a model of experts in codes is near the model that it codes, in a part of its memory") {
  const NoGrad no_grad;
  const std::vector<std::int64_t> numbers = {1, 7, 30, 2, 9};
  const Tensor tokens = from_values(std::span(numbers), {1, 5});
  const auto whole = filled(experts_shape(), WeightForm::f32);
  const std::vector<double> exact = to_doubles((*whole)(tokens));
  for (const WeightForm form : forms) {
    INFO(coded::weight_form_names()[static_cast<std::size_t>(form)]);
    const auto model = filled(experts_shape(), form);
    const std::vector<double> own = to_doubles((*model)(tokens));
    double squares = 0;
    double all = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      squares += (own[i] - exact[i]) * (own[i] - exact[i]);
      all += exact[i] * exact[i];
    }
    const bool four_bits = form == WeightForm::q4_0 || form == WeightForm::q4_k;
    CHECK(std::sqrt(squares / all) > 1e-5);
    CHECK(std::sqrt(squares / all) < (four_bits ? 0.6 : 0.1));
    // No decoded matrix is kept beside the codes.
    CHECK(text::parameter_bytes(*model) < text::parameter_bytes(*whole) * 11 / 20);
  }
}

TEST_CASE("a matrix of experts may stay beside others in codes") {
  const NoGrad no_grad;
  const Routed in;
  class Mixed final : public nn::Module {
   public:
    explicit Mixed(bool coded) : experts_(add_child<nn::Experts>("experts", options())) {
      set_names();
      coded::use_codes(*this, [&](const coded::CodableWeight& weight) {
        CHECK(weight.shape.size() == 3);
        CHECK(weight.splits_columns == weight.name.ends_with("down_proj"));
        const bool up = weight.name.ends_with("up_proj");
        return coded && up ? std::optional(coded::CodeType::f16) : std::nullopt;
      });
      nn::materialize(*this);
      double factor = 0.5;  // of each matrix, plain or in codes
      for (const std::string name : {"gate_proj", "up_proj", "down_proj"}) {
        factor += 0.1;
        for (const auto& [own, parameter] : experts_->parameters()) {
          if (own == name) {
            ops::copy_(parameter->value, values(parameter->value.shape(), factor));
          }
        }
        for (const nn::PackedWeight& packed : nn::packed_weights_of(*experts_)) {
          if (packed.name == name) {
            packed.pack(values(packed.shape, factor));
          }
        }
      }
    }
    std::string_view kind() const override { return "Mixed"; }
    Tensors forward(const Tensors& inputs) override { return {(*experts_)(inputs)[0]}; }

   private:
    static Tensor values(const Dims& shape, double factor) {
      const Tensor x = empty(shape, DType::f32);
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        x.data<float>()[i] = static_cast<float>(0.3 * std::sin(factor * static_cast<double>(i)));
      }
      return x;
    }
    static nn::MixtureOptions options() {
      return {.expert = {.dim = 64, .width = 16}, .experts = 4, .experts_per_token = 2};
    }
    nn::Child experts_;
  };
  const Tensors inputs{in.hidden, in.weights, in.chosen};
  const std::vector<double> plain = to_doubles(Mixed(false)(inputs)[0]);
  const std::vector<double> mixed = to_doubles(Mixed(true)(inputs)[0]);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CHECK(std::abs(plain[i] - mixed[i]) < 2e-3);
  }
  CHECK(plain != mixed);
}

TEST_CASE("layers in codes that ranks have in parts compute the same") {
  const NoGrad no_grad;
  const std::vector<std::int64_t> numbers = {0, 12, 7, 6, 3, 11};
  const Tensor tokens = from_values(std::span(numbers), {2, 3});
  for (const coded::CodeType type : {coded::CodeType::q8_0, coded::CodeType::q4_0,
                                     coded::CodeType::int8, coded::CodeType::bf16}) {
    const std::vector<double> whole = to_doubles(Layers(type)(tokens));
    testing::on_ranks(2, [&](int) {
      const NoGrad own;
      const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
      Layers layers(type);
      layers.split(mesh);
      const Tensor x = distribute(tokens, Layout::make(mesh, {Replicate()}));
      const std::vector<double> parts = to_doubles(full_tensor(layers(x)));
      testing::check(parts.size() == whole.size(), "the shape");
      for (std::size_t i = 0; i < whole.size(); ++i) {
        testing::check(std::abs(parts[i] - whole[i]) < 1e-4, "an element");
      }
    });
  }
  // Half of 128 columns is no whole block of Q4_K, of Q8_0 it is two.
  CHECK_THROWS_AS(Layers(coded::CodeType::q4_k), Error);
}

TEST_CASE("texts have the same bits alone and among others with every form of weights") {
  const NoGrad no_grad;
  for (const WeightForm form : forms) {
    INFO(coded::weight_form_names()[static_cast<std::size_t>(form)]);
    const auto model = filled(form);
    const std::vector<Logits> together = continued(*model, {3, 19, 8, 30});
    CHECK(continued(*model, {19})[0] == together[1]);
    CHECK(continued(*model, {8})[0] == together[2]);
    const std::vector<Logits> short_keys = continued(*model, {3, 19, 8, 30}, DType::bf16);
    CHECK(continued(*model, {30}, DType::bf16)[0] == short_keys[3]);
    CHECK(short_keys[3] != together[3]);
  }
}

TEST_CASE("with products of integers, texts have the same bits alone, among others and guessed") {
  const NoGrad no_grad;
  for (const WeightForm form : forms) {
    if (form == WeightForm::bf16) {
      continue;
    }
    INFO(coded::weight_form_names()[static_cast<std::size_t>(form)]);
    const auto model = filled(form, true, Activations::int8);
    const std::vector<Logits> together = continued(*model, {3, 19, 8, 30});
    CHECK(continued(*model, {19})[0] == together[1]);
    CHECK(continued(*model, {3})[0] == together[0]);
    CHECK(continued(*model, {3, 19, 8, 30}, std::nullopt, 6) == together);
    const Logits exact = continued(*filled(form), {19})[0];
    CHECK(exact[0] != together[1][0]);
    double squares = 0;
    double all = 0;
    for (std::size_t i = 0; i < exact[0].size(); ++i) {
      squares += std::pow(exact[0][i] - together[1][0][i], 2);
      all += std::pow(exact[0][i], 2);
    }
    CHECK(std::sqrt(squares / all) < 0.06);
  }
  for (const WeightForm form : {WeightForm::f32, WeightForm::bf16}) {
    CHECK(testing::contains(testing::error_of([&] { filled(form, true, Activations::int8); }),
                            "no weight of the model is kept in integers"));
  }
}

TEST_CASE("a model in codes is near the model that it codes") {
  const NoGrad no_grad;
  const std::vector<std::int64_t> numbers = {1, 7, 30, 2, 9};
  const Tensor tokens = from_values(std::span(numbers), {1, 5});
  for (const bool tied : {true, false}) {
    const std::vector<double> exact = to_doubles((*filled(WeightForm::f32, tied))(tokens));
    double before = 0;
    for (const WeightForm form : forms) {
      INFO(coded::weight_form_names()[static_cast<std::size_t>(form)]);
      const std::vector<double> own = to_doubles((*filled(form, tied))(tokens));
      double squares = 0;
      double all = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        squares += (own[i] - exact[i]) * (own[i] - exact[i]);
        all += exact[i] * exact[i];
      }
      const double share = std::sqrt(squares / all);
      const bool four_bits = form == WeightForm::q4_0 || form == WeightForm::q4_k;
      CHECK(share > 1e-5);
      CHECK(share < (four_bits ? 0.4 : 0.05));
      before = share;
    }
    CHECK(before > 0);
  }
}

TEST_CASE("embeddings and logits that share a weight share its codes") {
  const auto tied = filled(WeightForm::q8_0);
  CHECK(kind_of(*tied, "model.embed_tokens") == "CodedEmbedding");
  CHECK(kind_of(*tied, "lm_head") == "CodedLinear");
  CHECK(kind_of(*tied, "model.layers.1.mlp.down_proj") == "CodedLinear");
  // 64 and 256 columns in blocks of 32, 34 bytes each; norms stay.
  const std::int64_t elements = nn::parameter_count(*filled(WeightForm::f32));
  const std::int64_t norms = 5 * 64;
  CHECK(text::parameter_bytes(*tied) == (elements - norms) / 32 * 34 + norms * 4);
  const auto apart = filled(WeightForm::q8_0, false);
  CHECK(text::parameter_bytes(*apart) == text::parameter_bytes(*tied) + vocab * 64 / 32 * 34);
}

TEST_CASE("keys and values in bf16 need half the memory") {
  const NoGrad no_grad;
  const auto model = filled(WeightForm::f32);
  text::ModelRanks whole(*model);
  const std::int64_t bytes = whole.text_bytes().position;
  text::ModelRanks half(*model, nullptr, {}, -1, DType::bf16);
  CHECK(half.text_bytes().position * 2 == bytes);
}

TEST_CASE("weights in codes have no gradients") {
  const Routed in;
  Tensor hidden = ops::add_scalar(in.hidden, 0);
  hidden.set_requires_grad(true);
  ExpertLayers experts(coded::CodeType::q8_0);
  CHECK(
      testing::contains(testing::error_of([&] { experts(Tensors{hidden, in.weights, in.chosen}); }),
                        "no gradients pass"));
  const auto model = filled(WeightForm::q8_0);
  const std::vector<std::int64_t> numbers = {1, 2, 3};
  const Tensor tokens = from_values(std::span(numbers), {1, 3});
  CHECK(testing::contains(testing::error_of([&] { (*model)(tokens); }), "no gradients pass"));
}
