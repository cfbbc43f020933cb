module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.generation;

import tessera.base;
import tessera.tokenize;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;
import tessera.app.adapters;

namespace tessera::app {
namespace {

/// A token by its logits; `noise` is uniform in [0, 1).
std::int64_t pick(const std::vector<double>& logits, const GenerationOptions& options,
                  double noise) {
  if (!std::ranges::all_of(logits, [](double logit) { return std::isfinite(logit); })) {
    fail({.thing = "generate",
          .wrong = "the model's logits are not finite",
          .advice = "its weights are too large, or not finite"});
  }
  const auto logit_of = [&](std::int64_t token) { return logits[static_cast<std::size_t>(token)]; };
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    return logit_of(a) != logit_of(b) ? logit_of(a) > logit_of(b) : a < b;
  };
  const std::int64_t best = std::ranges::max_element(logits) - logits.begin();
  if (options.temperature == 0) {
    return best;
  }
  std::vector<std::int64_t> candidates(logits.size());
  std::iota(candidates.begin(), candidates.end(), std::int64_t{0});
  if (options.top_k > 0 && options.top_k < std::ssize(candidates)) {
    const auto end = candidates.begin() + options.top_k;
    std::nth_element(candidates.begin(), end, candidates.end(), likelier);
    candidates.erase(end, candidates.end());
    std::ranges::sort(candidates, likelier);
  }
  std::vector<double> weights;
  weights.reserve(candidates.size());
  double sum = 0;
  for (const std::int64_t token : candidates) {
    weights.push_back(std::exp((logit_of(token) - logit_of(best)) / options.temperature));
    sum += weights.back();
  }
  double rest = noise * sum;
  for (const auto [candidate, weight] : ranges::views::zip(candidates, weights)) {
    rest -= weight;
    if (rest < 0) {
      return candidate;
    }
  }
  return candidates.back();
}

/// The tokenizer with which the model was trained, or the one that is named.
std::shared_ptr<const RunTokenizer> tokenizer_of(const std::string& meta,
                                                 const std::string& checkpoint,
                                                 const std::string& named) {
  auto tokenizer = stored_tokenizer(meta, checkpoint, named);
  if (!tokenizer) {
    fail_input({.thing = checkpoint,
                .wrong = "the model was trained on token ids (data.tokens), so there is no "
                         "tokenizer for text",
                .advice = "name one with --tokenizer"});
  }
  return tokenizer;
}

/// A thread for each 4 million parameters: a token's products are one pass over the weights, and
/// waking a thread for a small part of it costs more than the part.
void choose_threads(const ModelShape& shape) {
  constexpr std::int64_t parameters_of_thread = std::int64_t{1} << 22;
  ops::set_threads(static_cast<int>(
      std::clamp<std::int64_t>(shape.parameters() / parameters_of_thread, 1, available_cores())));
}

/// The model of a checkpoint on this process alone.
class Generator {
 public:
  Generator(const std::string& checkpoint, const std::string& named) {
    const CheckpointReader reader(checkpoint);
    shape_ = stored_model(reader.meta(), checkpoint);
    tokenizer_ = tokenizer_of(reader.meta(), checkpoint, named);
    if (shape_.vocab < tokenizer_->vocab()) {
      fail_input(
          {.thing = checkpoint,
           .wrong = fmt::format("the model's vocabulary is smaller than that of tokenizer '{}'",
                                tokenizer_->text()),
           .expected = fmt::format("at least {} tokens", tokenizer_->vocab()),
           .got = fmt::format("{}", shape_.vocab)});
    }
    const MergedWeights stored(reader, stored_updates(reader.meta(), checkpoint), "model.");
    check_stored_sizes(shape_, stored, "model.", checkpoint);
    choose_threads(shape_);
    model_ = make_model(shape_, 0);
    nn::materialize(*model_);
    StateDict weights;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*model_)) {
      weights.tensors.emplace(parameter->name, parameter->value);
    }
    LoadOptions options;
    options.prefix = "model.";
    load_state(stored, weights, options);
    model_->train(false);
    model_->set_cache(&cache_);
  }

  const tokenize::Tokenizer& tokenizer() const { return *tokenizer_->opened.tokenizer; }
  /// Whether a text ends at this token, by the model or by its tokenizer.
  bool ends_at(std::int64_t token) const {
    const auto& stop = tokenizer_->opened.special.stop;
    return std::ranges::find(shape_.eos, token) != shape_.eos.end() ||
           std::ranges::find(stop, token) != stop.end();
  }

  /// The logits after these further tokens (at least one).
  std::vector<double> next(std::span<const std::int64_t> tokens) {
    constexpr std::size_t at_once = 512;  // a long prompt's logits need not be in memory together
    Tensor last;
    for (; !tokens.empty(); tokens = tokens.subspan(std::min(at_once, tokens.size()))) {
      const auto part = tokens.first(std::min(at_once, tokens.size()));
      const std::int64_t count = std::ssize(part);
      const Tensor logits = (*model_)(from_values(part, {1, count}));
      last = ops::select(ops::select(logits, 0, 0), 0, count - 1);
    }
    return to_doubles(last);
  }

 private:
  ModelShape shape_;
  std::shared_ptr<const RunTokenizer> tokenizer_;
  std::shared_ptr<nn::LanguageModel> model_;
  nn::KeyValueCache cache_;
};

}  // namespace

std::string generate_text(const std::string& checkpoint, const std::string& prompt,
                          const GenerationOptions& options,
                          const std::function<void(const std::string&)>& each) {
  if (prompt.empty()) {
    fail_input(
        {.thing = "generate", .wrong = "the prompt is empty", .advice = "give --prompt TEXT"});
  }
  const NoGrad no_grad;
  Generator generator(checkpoint, options.tokenizer);
  std::mt19937_64 random(options.seed);
  const tokenize::Tokenizer& tokenizer = generator.tokenizer();
  tokenize::StreamDecoder decoder(tokenizer);
  std::vector<std::int64_t> fresh;
  for (const tokenize::TokenId id : tokenizer.encode(prompt)) {
    fresh.push_back(id);
    decoder.add(id);  // how a token is written may depend on those before it
  }
  std::string text;
  const auto give = [&](const std::string& piece) {
    text += piece;
    if (each && !piece.empty()) {
      each(piece);
    }
  };
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const double noise = static_cast<double>(random() >> 11) * 0x1p-53;
    const std::int64_t token = pick(generator.next(fresh), options, noise);
    if (generator.ends_at(token)) {
      break;
    }
    fresh = {token};
    if (!tokenizer.token(static_cast<tokenize::TokenId>(token))) {
      continue;  // a row of the model that no token has
    }
    give(decoder.add(static_cast<tokenize::TokenId>(token)));
  }
  give(decoder.finish());
  return text;
}

}  // namespace tessera::app
