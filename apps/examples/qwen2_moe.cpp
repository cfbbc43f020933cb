// A family of models in a plugin: Qwen 2 MoE, whose layers have an expert for all tokens beside the
// mixture that Tessera's other families have. What is a Qwen 3 MoE's or another decoder's is in the
// table of traits; what is new is one module and its names. docs/models.md explains it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;

namespace {

using namespace tessera;
using models::DecoderFamily;
using models::DecoderTraits;
using models::ModelSizes;

/// A mixture, and one more expert that computes every token; a gate of its own weights it.
class SharedMixture : public nn::SparseMixture {
 public:
  SharedMixture(const nn::MixtureOptions& options, std::int64_t shared_width)
      : nn::SparseMixture(options) {
    nn::FeedForwardOptions shared = options.expert;
    shared.width = shared_width;
    shared_ = add_child<nn::GatedMLP>("shared_expert", shared);
    shared_gate_ = add_child<nn::Linear>("shared_expert_gate", shared.dim, 1, false,
                                         shared.standard_deviation, shared.dtype);
  }
  std::string_view kind() const override { return "SharedMixture"; }

  Tensors forward(const Tensors& inputs) override {
    const Tensor mixture = nn::SparseMixture::forward(inputs)[0];
    const Tensor& hidden = input(inputs, 0);
    const Tensor share = ops::sigmoid((*shared_gate_)(hidden));
    return {ops::add(mixture, ops::mul(share, (*shared_)(hidden)))};
  }

 private:
  nn::Child shared_, shared_gate_;
};

/// Those of Qwen 3 MoE, but for what follows.
DecoderTraits traits() {
  DecoderTraits all = models::qwen3_moe_traits();
  all.architecture = "Qwen2MoeForCausalLM";
  all.shape.query_key_norm = false;
  all.shape.bias = true;
  all.properties.push_back({.key = "shared_expert_dim",
                            .hub = "shared_expert_intermediate_size",
                            .members = {},
                            .initial = std::int64_t{256},
                            .absent = std::int64_t{5632},
                            .doc = "Width of the expert of all tokens.",
                            .range = {.low = 1, .high = 0x1p24}});
  for (const auto& [key, absent] :
       {std::pair{"experts", 60}, {"experts_per_token", 4}, {"expert_dim", 1408}}) {
    std::ranges::find(all.properties, key, &models::DecoderProperty::key)->absent =
        std::int64_t{absent};
  }
  all.layer_types = true;
  std::erase_if(all.fixed_keys, [](const auto& fixed) { return fixed.key == "attention_bias"; });
  all.fixed_keys.push_back({"qkv_bias", "true", "queries, keys and values have biases"});
  return all;
}

class Qwen2Moe final : public DecoderFamily {
 public:
  Qwen2Moe() : DecoderFamily(traits()) {}

  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override {
    nn::DecoderShape shape = shape_of(sizes);
    shape.dropout = dropout;
    auto model = std::make_shared<nn::DecoderLM>(shape);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      if (shape.has_experts(layer)) {
        nn::replace_modules(*model, mlp(layer), [&](const std::shared_ptr<nn::Module>&) {
          return std::make_shared<SharedMixture>(shape.mixture(), width(sizes));
        });
      }
    }
    return model;
  }

  double parameters(const ModelSizes& sizes) const override {
    const nn::DecoderShape shape = shape_of(sizes);
    double all = DecoderFamily::parameters(sizes);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto rows = static_cast<double>(3 * width(sizes) + 1);
      all += shape.has_experts(layer) ? rows * static_cast<double>(shape.dim) : 0;
    }
    return all;
  }

  std::vector<models::SizedTensor> sized_tensors(const ModelSizes& sizes) const override {
    const nn::DecoderShape shape = shape_of(sizes);
    std::vector<models::SizedTensor> all = DecoderFamily::sized_tensors(sizes);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      if (shape.has_experts(layer)) {
        all.push_back({mlp(layer) + ".shared_expert.gate_proj.weight",
                       {"shared_expert_intermediate_size", "hidden_size"},
                       {width(sizes), shape.dim}});
        break;
      }
    }
    return all;
  }

 private:
  static std::string mlp(std::int64_t layer) {
    return "model.layers." + std::to_string(layer) + ".mlp";
  }
  static std::int64_t width(const ModelSizes& sizes) {
    return sizes.values.integer("shared_expert_dim");
  }
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<models::ModelFamily>("qwen2_moe", [] { return std::make_unique<Qwen2Moe>(); });
}
