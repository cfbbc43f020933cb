// A family of models in a plugin: dots.llm1, a Qwen 3 whose mixtures of experts are DeepSeek-V3's.
// Scores are sigmoids, a bias counts where experts are chosen, experts are in groups, and some of
// them compute all tokens. All of it is in the table of traits. docs/models.md explains it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.nn;
import tessera.models;

namespace {

using namespace tessera;
using models::decoder_field;
using models::DecoderFamily;
using models::DecoderProperty;
using models::DecoderTraits;
using Shape = nn::DecoderShape;

DecoderProperty size(std::string key, std::string hub, models::DecoderField<std::int64_t> member,
                     std::int64_t initial, std::int64_t absent, std::string doc) {
  const double least = initial > 0 ? 1 : 0;
  return {std::move(key),
          std::move(hub),
          {member},
          initial,
          absent,
          std::move(doc),
          {.low = least, .high = 0x1p24}};
}

/// Those of Qwen 3 MoE, but for what follows.
DecoderTraits traits() {
  DecoderTraits all = models::decoder_traits("qwen3_moe");
  all.architecture = "Dots1ForCausalLM";
  all.shape.router_score = nn::RouterScore::sigmoid;
  all.shape.router_bias = true;
  all.layer_types = true;
  all.experts->bias = "mlp.gate.e_score_correction_bias";
  all.experts->shared = "mlp.shared_experts.";
  all.properties = {
      size("experts", "n_routed_experts", decoder_field<&Shape::experts>, 8, 128,
           "Experts of a layer."),
      size("experts_per_token", "num_experts_per_tok", decoder_field<&Shape::experts_per_token>, 2,
           6, "How many of them compute a token."),
      size("expert_dim", "moe_intermediate_size", decoder_field<&Shape::expert_dim>, 0, 1408,
           "Width of an expert. 0: `ffn_dim`."),
      size("shared_experts", "n_shared_experts", decoder_field<&Shape::shared_experts>, 1, 2,
           "Experts that compute all tokens."),
      size("first_dense_layers", "first_k_dense_replace", decoder_field<&Shape::first_dense_layers>,
           0, 0, "So many first layers have no experts."),
      size("expert_groups", "n_group", decoder_field<&Shape::expert_groups>, 1, 1,
           "Groups of experts."),
      size("groups_per_token", "topk_group", decoder_field<&Shape::groups_per_token>, 1, 1,
           "A token's experts are of so many groups."),
      {"expert_scale",
       "routed_scaling_factor",
       {decoder_field<&Shape::expert_scale>},
       1.0,
       1.0,
       "The weights of a token's experts are multiplied by it.",
       {.low = 0, .low_open = true}},
      {"normalize_experts",
       "norm_topk_prob",
       {decoder_field<&Shape::normalize_experts>},
       true,
       false,
       "The weights of a token's experts are scaled to sum to 1, before they are multiplied."}};
  std::erase_if(all.fixed_keys, [](const auto& one) { return one.key == "use_sliding_window"; });
  all.absent.max_positions = 2048;
  return all;
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<models::ModelFamily>("dots1",
                                     [] { return std::make_unique<DecoderFamily>(traits()); });
}
