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

/// The same values in each form.
std::shared_ptr<nn::DecoderLM> filled(WeightForm form, bool tied = true,
                                      Activations activations = Activations::f32) {
  auto model = std::make_shared<nn::DecoderLM>(shape_of(tied));
  text::set_weight_form(*model, form, 1, nullptr, activations);
  set_seed(3);
  nn::materialize(*model);
  nn::initialize(*model);
  model->train(false);
  return model;
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

}  // namespace

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
  const auto model = filled(WeightForm::q8_0);
  const std::vector<std::int64_t> numbers = {1, 2, 3};
  const Tensor tokens = from_values(std::span(numbers), {1, 3});
  CHECK(testing::contains(testing::error_of([&] { (*model)(tokens); }), "no gradients pass"));
}
