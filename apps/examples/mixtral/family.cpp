// The family "mixtral": what is a Llama's is asked of the family of Llamas.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.nn;
import tessera.models;

#include "mixtral.hpp"

namespace {

using namespace tessera::models;
namespace nn = tessera::nn;

constexpr std::int64_t most_experts = 1 << 16;

mixtral::Shape shape_of(const ModelSizes& sizes) {
  return {.llama = decoder_shape(sizes),
          .experts = sizes.values.integer("experts"),
          .experts_per_token = sizes.values.integer("experts_per_token")};
}

std::string layer_name(std::int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

class Mixtral final : public ModelFamily {
 public:
  std::vector<ModelKey> keys() const override {
    std::vector<ModelKey> all = llama_.keys();
    all.push_back({"experts",
                   std::int64_t{8},
                   "Experts of each layer.",
                   {.low = 1, .high = static_cast<double>(most_experts)}});
    all.push_back({"experts_per_token",
                   std::int64_t{2},
                   "How many of them compute a token.",
                   {.low = 1, .high = static_cast<double>(most_experts)}});
    return all;
  }

  std::vector<ModelProblem> complete(ModelSizes& sizes) const override {
    std::vector<ModelProblem> problems = llama_.complete(sizes);
    const mixtral::Shape shape = shape_of(sizes);
    if (shape.experts_per_token > shape.experts) {
      problems.push_back({{"experts_per_token", "experts"}, too_many(shape)});
    }
    return problems;
  }

  std::string describe(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = shape_of(sizes);
    return llama_.describe(sizes) + ", " + std::to_string(shape.experts_per_token) + " of " +
           std::to_string(shape.experts) + " experts";
  }

  double parameters(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = shape_of(sizes);
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    const double dense = 3 * number(shape.llama.dim) * number(shape.llama.ffn_dim);
    const double router = number(shape.experts) * number(shape.llama.dim);
    return llama_.parameters(sizes) +
           number(shape.llama.layers) * ((number(shape.experts) - 1) * dense + router);
  }

  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override {
    mixtral::Shape shape = shape_of(sizes);
    shape.llama.dropout = dropout;
    return std::make_shared<mixtral::LanguageModel>(shape);
  }

  std::string architecture() const override { return "MixtralForCausalLM"; }
  SpecialTokens special_tokens() const override { return {.bos = 1, .eos = 2}; }

  ModelSizes read(HubConfig& config) const override {
    ModelSizes sizes = llama_.read(config);
    sizes.values.set("experts", config.size("num_local_experts", most_experts, 8));
    sizes.values.set("experts_per_token", config.size("num_experts_per_tok", most_experts, 2));
    config.only("router_jitter_noise", "0.0", "the router adds no noise");
    config.only("output_router_logits", "false", "the loss has no term that balances experts");
    config.ignore(std::vector<std::string>{"router_aux_loss_coef"});
    if (config.sound()) {
      const mixtral::Shape shape = shape_of(sizes);
      if (shape.experts_per_token > shape.experts) {
        config.problem("num_experts_per_tok: " + too_many(shape));
      }
    }
    return sizes;
  }

  std::vector<HubKey> write(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = shape_of(sizes);
    std::vector<HubKey> all = llama_.write(sizes);
    std::erase_if(all, [](const HubKey& key) {
      return key.key == "attention_bias" || key.key == "mlp_bias";  // a Mixtral has no such keys
    });
    all.emplace_back("num_local_experts", shape.experts);
    all.emplace_back("num_experts_per_tok", shape.experts_per_token);
    all.emplace_back("router_jitter_noise", 0.0);
    all.emplace_back("output_router_logits", false);
    return all;
  }

  // A folder has the experts one by one.
  std::vector<HubTensor> tensors(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = shape_of(sizes);
    std::vector<HubTensor> all;
    for (std::int64_t number = 0; number < shape.llama.layers; ++number) {
      const std::string layer = layer_name(number);
      all.push_back({layer + "mlp.gate.weight", layer + "block_sparse_moe.gate.weight"});
      for (const auto& [own, stored] :
           {std::pair{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}}) {
        all.push_back({.parameter = layer + "mlp.experts." + own,
                       .tensor = layer + "block_sparse_moe.experts.*." + stored + ".weight",
                       .stacked = true});
      }
    }
    return all;
  }

  Layers layers(const ModelSizes& sizes) const override { return llama_.layers(sizes); }

  std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = shape_of(sizes);
    std::vector<SizedTensor> all = llama_.sized_tensors(sizes);
    std::erase_if(all, [](const SizedTensor& tensor) {
      return tensor.parameter == "model.layers.0.mlp.gate_proj.weight";
    });
    const std::string mlp = layer_name(0) + "mlp.";
    all.push_back({mlp + "gate.weight",
                   {"num_local_experts", "hidden_size"},
                   {shape.experts, shape.llama.dim}});
    all.push_back({mlp + "experts.gate_proj",
                   {"num_local_experts", "intermediate_size", "hidden_size"},
                   {shape.experts, shape.llama.ffn_dim, shape.llama.dim}});
    return all;
  }

 private:
  static std::string too_many(const mixtral::Shape& shape) {
    return "a token cannot have more experts than there are (" + std::to_string(shape.experts) +
           " experts, " + std::to_string(shape.experts_per_token) + " per token)";
  }

  const ModelFamily& llama_ = model_family("llama");
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<ModelFamily>("mixtral", [] { return std::make_unique<Mixtral>(); });
}
