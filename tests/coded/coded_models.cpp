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

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.coded;
import tessera.text;

using namespace tessera;
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
std::shared_ptr<nn::DecoderLM> filled(WeightForm form, bool tied = true) {
  auto model = std::make_shared<nn::DecoderLM>(shape_of(tied));
  text::set_weight_form(*model, form, 1);
  set_seed(3);
  nn::materialize(*model);
  nn::initialize(*model);
  model->train(false);
  return model;
}

using Logits = std::vector<std::vector<double>>;

/// The logits of the tokens that an engine's texts continue with.
std::vector<Logits> continued(nn::LanguageModel& model, const std::vector<std::int64_t>& lengths,
                              std::optional<DType> keys = std::nullopt) {
  text::ModelRanks ranks(model, nullptr, {}, -1, keys);
  text::Engine engine(ranks, vocab, {.prompt_tokens = 7});
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

}  // namespace

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
