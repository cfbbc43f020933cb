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

/// What is a Llama's, with Mixtral's class.
DecoderTraits traits() {
  DecoderTraits all = llama_traits();
  all.architecture = "MixtralForCausalLM";
  all.properties.clear();  // a Mixtral has no biases
  return all;
}

std::string layer_name(std::int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

class Mixtral final : public DecoderFamily {
 public:
  Mixtral() : DecoderFamily(traits()) {}

  std::vector<ModelKey> keys() const override {
    std::vector<ModelKey> all = DecoderFamily::keys();
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
    std::vector<ModelProblem> problems = DecoderFamily::complete(sizes);
    const mixtral::Shape shape = mixture_of(sizes);
    if (shape.experts_per_token > shape.experts) {
      problems.push_back({{"experts_per_token", "experts"}, too_many(shape)});
    }
    return problems;
  }

  // Every rank has all experts: it is attention that is split.
  TensorSplit tensor_split() const override {
    return {.columns = {"model.layers.*.self_attn.{q,k,v}_proj"},
            .rows = {"model.embed_tokens", "model.layers.*.self_attn.o_proj"},
            .logits = "lm_head"};
  }

  std::string describe(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = mixture_of(sizes);
    return DecoderFamily::describe(sizes) + ", " + std::to_string(shape.experts_per_token) +
           " of " + std::to_string(shape.experts) + " experts";
  }

  double parameters(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = mixture_of(sizes);
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    const double dense = 3 * number(shape.llama.dim) * number(shape.llama.ffn_dim);
    const double router = number(shape.experts) * number(shape.llama.dim);
    return DecoderFamily::parameters(sizes) +
           number(shape.llama.layers) * ((number(shape.experts) - 1) * dense + router);
  }

  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override {
    mixtral::Shape shape = mixture_of(sizes);
    shape.llama.dropout = dropout;
    return std::make_shared<mixtral::LanguageModel>(shape);
  }

  ModelSizes read(HubConfig& config) const override {
    ModelSizes sizes = DecoderFamily::read(config);
    sizes.values.set("experts", config.size("num_local_experts", most_experts, 8));
    sizes.values.set("experts_per_token", config.size("num_experts_per_tok", most_experts, 2));
    config.only("router_jitter_noise", "0.0", "the router adds no noise");
    config.only("output_router_logits", "false", "the loss has no term that balances experts");
    config.ignore(std::vector<std::string>{"router_aux_loss_coef"});
    if (config.sound()) {
      const mixtral::Shape shape = mixture_of(sizes);
      if (shape.experts_per_token > shape.experts) {
        config.problem("num_experts_per_tok: " + too_many(shape));
      }
    }
    return sizes;
  }

  std::vector<HubKey> write(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = mixture_of(sizes);
    std::vector<HubKey> all = DecoderFamily::write(sizes);
    all.emplace_back("num_local_experts", shape.experts);
    all.emplace_back("num_experts_per_tok", shape.experts_per_token);
    all.emplace_back("router_jitter_noise", 0.0);
    all.emplace_back("output_router_logits", false);
    return all;
  }

  // A folder has the experts one by one.
  std::vector<HubTensor> tensors(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = mixture_of(sizes);
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

  std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const override {
    const mixtral::Shape shape = mixture_of(sizes);
    std::vector<SizedTensor> all = DecoderFamily::sized_tensors(sizes);
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
  mixtral::Shape mixture_of(const ModelSizes& sizes) const {
    return {.llama = shape_of(sizes),
            .experts = sizes.values.integer("experts"),
            .experts_per_token = sizes.values.integer("experts_per_token")};
  }

  static std::string too_many(const mixtral::Shape& shape) {
    return "a token cannot have more experts than there are (" + std::to_string(shape.experts) +
           " experts, " + std::to_string(shape.experts_per_token) + " per token)";
  }
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<ModelFamily>("mixtral", [] { return std::make_unique<Mixtral>(); });
}
