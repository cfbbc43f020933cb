#include "generation/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "data/tokenizer.hpp"
#include "llama_config.hpp"

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;

#include "training/setup.hpp"

namespace tessera::app {
namespace {

/// A token by its logits; `noise` is uniform in [0, 1).
std::int64_t pick(std::vector<double> logits, const GenerationOptions& options, double noise) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  };
  std::sort(order.begin(), order.end(), likelier);
  if (options.temperature == 0) {
    return order[0];
  }
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  std::vector<double> weights;
  double sum = 0;
  for (const std::int64_t token : order) {
    const double above =
        logits[static_cast<std::size_t>(token)] - logits[static_cast<std::size_t>(order[0])];
    weights.push_back(std::exp(above / options.temperature));
    sum += weights.back();
  }
  double rest = noise * sum;
  for (std::size_t i = 0; i < order.size(); ++i) {
    rest -= weights[i];
    if (rest < 0) {
      return order[i];
    }
  }
  return order.back();
}

/// The model of a checkpoint on this process alone.
class Generator {
 public:
  Generator(const std::string& checkpoint, std::int64_t capacity) {
    const CheckpointReader reader(checkpoint);
    const auto meta = nlohmann::json::parse(reader.meta(), nullptr, false);
    if (!meta.is_object() || !meta.contains("model") || !meta.contains("config")) {
      fail_input(fmt::format("{}: is not a checkpoint of 'tessera train'", checkpoint));
    }
    const auto& data = meta["config"]["data"];
    if (!data["tokens"].empty()) {
      fail_input(fmt::format(
          "{}: was trained on ready-made tokens; there is no tokenizer to make text with",
          checkpoint));
    }
    tokenizer_ = make_tokenizer(data["tokenizer"].get<std::string>());
    const LlamaConfig shape = parse_llama_config(meta["model"].dump(), checkpoint);
    model_ = make_model(shape, 0);
    nn::materialize(*model_);
    StateDict weights;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*model_)) {
      weights.tensors.emplace(parameter->name, parameter->value);
    }
    LoadOptions options;
    options.prefix = "model.";
    load_state(reader, weights, options);
    model_->train(false);
    cache_.capacity = capacity;
    for (std::int64_t i = 0; i < shape.layers; ++i) {
      const Dims extents = {1, capacity, shape.kv_heads, shape.head_dim};
      cache_.layers.push_back({zeros(extents), zeros(extents)});
    }
    model_->set_cache(&cache_);
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }

  /// The logits after these further tokens.
  std::vector<double> next(std::span<const std::int64_t> tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    const Tensor logits = (*model_)(from_values(tokens, {1, count}));
    return to_doubles(ops::select(ops::select(logits, 0, 0), 0, count - 1));
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<nn::LlamaForCausalLM> model_;
  nn::KeyValueCache cache_;
};

}  // namespace

std::string generate_text(const std::string& checkpoint, const std::string& prompt,
                          const GenerationOptions& options,
                          const std::function<void(const std::string&)>& each) {
  if (prompt.empty()) {
    fail_input("generate: the prompt is empty; give --prompt TEXT");
  }
  const NoGrad no_grad;
  Generator generator(checkpoint, static_cast<std::int64_t>(prompt.size()) + options.tokens);
  std::mt19937_64 random(options.seed);
  std::vector<std::int64_t> fresh = generator.tokenizer().encode(prompt);
  std::string text;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const double noise = static_cast<double>(random() >> 11) * 0x1p-53;
    const std::int64_t token = pick(generator.next(fresh), options, noise);
    fresh = {token};
    const std::string piece = generator.tokenizer().decode(fresh);
    text += piece;
    if (each) {
      each(piece);
    }
  }
  return text;
}

}  // namespace tessera::app
