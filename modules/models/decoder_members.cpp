// The members of nn::DecoderShape by their names.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_family;

namespace tessera::models {
namespace {

using Shape = nn::DecoderShape;

template <class Enum>
struct Word {
  Enum value;
  const char* word;
};

using nn::Activation;
using nn::HeadNorm;
using nn::RouterScore;
using NormKind = nn::NormOptions::Kind;

// The words of each enumeration, found by its type.
constexpr Word<Activation> activations[] = {{Activation::silu, "silu"},
                                            {Activation::gelu_tanh, "gelu_tanh"},
                                            {Activation::gelu, "gelu"},
                                            {Activation::relu, "relu"},
                                            {Activation::squared_relu, "squared_relu"}};
constexpr Word<HeadNorm> head_norms[] = {{HeadNorm::none, "none"},
                                         {HeadNorm::shared, "shared"},
                                         {HeadNorm::each, "each"},
                                         {HeadNorm::whole, "whole"}};
constexpr Word<NormKind> norm_kinds[] = {{NormKind::rms, "rms"}, {NormKind::layer, "layer"}};
constexpr Word<RouterScore> scores[] = {{RouterScore::softmax, "softmax"},
                                        {RouterScore::sigmoid, "sigmoid"}};

constexpr std::span<const Word<Activation>> words(Activation) { return activations; }
constexpr std::span<const Word<HeadNorm>> words(HeadNorm) { return head_norms; }
constexpr std::span<const Word<NormKind>> words(NormKind) { return norm_kinds; }
constexpr std::span<const Word<RouterScore>> words(RouterScore) { return scores; }

template <class Field>
constexpr bool is_word = std::is_enum_v<Field>;

std::vector<NamedDecoderMember> sorted(std::vector<NamedDecoderMember> all) {
  std::ranges::sort(all, {}, &NamedDecoderMember::name);
  return all;
}

}  // namespace

std::span<const NamedDecoderMember> decoder_members() {
  static const std::vector<NamedDecoderMember> all =
      sorted({{"activation", &Shape::activation},
              {"attention_gate", &Shape::attention_gate},
              {"attention_scale", &Shape::attention_scale},
              {"attention_softcap", &Shape::attention_softcap},
              {"bias", &Shape::bias},
              {"dense_layers", &Shape::dense_layers},
              {"embedding_norm", &Shape::embedding_norm},
              {"embedding_scale", &Shape::embedding_scale},
              {"expert_dim", &Shape::expert_dim},
              {"expert_groups", &Shape::expert_groups},
              {"expert_scale", &Shape::expert_scale},
              {"experts", &Shape::experts},
              {"experts_every", &Shape::experts_every},
              {"experts_per_token", &Shape::experts_per_token},
              {"ffn_bias", &Shape::ffn_bias},
              {"first_dense_layers", &Shape::first_dense_layers},
              {"gated", &Shape::gated},
              {"global_every", &Shape::global_every},
              {"global_layers", &Shape::global_layers},
              {"groups_per_token", &Shape::groups_per_token},
              {"head_bias", &Shape::head_bias},
              {"head_norm_weight", &Shape::head_norm_weight},
              {"latent_rank", &Shape::latent_rank},
              {"local_rope_theta", &Shape::local_rope_theta},
              {"local_unscaled", &Shape::local_unscaled},
              {"logit_divisor", &Shape::logit_divisor},
              {"logit_scale", &Shape::logit_scale},
              {"logit_softcap", &Shape::logit_softcap},
              {"norm_after_rotation", &Shape::norm_after_rotation},
              {"norm_bias", &Shape::norm_bias},
              {"norm_eps", &Shape::norm_eps},
              {"norm_inputs", &Shape::norm_inputs},
              {"norm_kind", &Shape::norm_kind},
              {"norm_offset", &Shape::norm_offset},
              {"norm_results", &Shape::norm_results},
              {"norm_weight", &Shape::norm_weight},
              {"normalize_experts", &Shape::normalize_experts},
              {"output_bias", &Shape::output_bias},
              {"parallel_block", &Shape::parallel_block},
              {"parallel_norms", &Shape::parallel_norms},
              {"plain_dim", &Shape::plain_dim},
              {"qkv_clip", &Shape::qkv_clip},
              {"query_key_norm", &Shape::query_key_norm},
              {"query_rank", &Shape::query_rank},
              {"residual_scale", &Shape::residual_scale},
              {"rope_limit", &Shape::rope_limit},
              {"rope_stretch", &Shape::rope_stretch},
              {"rope_theta", &Shape::rope_theta},
              {"rotary_dim", &Shape::rotary_dim},
              {"rotary_pairs", &Shape::rotary_pairs},
              {"rotary_share", &Shape::rotary_share},
              {"rotate_local_only", &Shape::rotate_local_only},
              {"rotated_dim", &Shape::rotated_dim},
              {"router_bias", &Shape::router_bias},
              {"router_score", &Shape::router_score},
              {"scale_embeddings", &Shape::scale_embeddings},
              {"score_dim", &Shape::score_dim},
              {"shared_expert_dim", &Shape::shared_expert_dim},
              {"shared_expert_gate", &Shape::shared_expert_gate},
              {"shared_experts", &Shape::shared_experts},
              {"tie_embeddings", &Shape::tie_embeddings},
              {"unrotated_every", &Shape::unrotated_every},
              {"unrotated_layers", &Shape::unrotated_layers},
              {"value_dim", &Shape::value_dim},
              {"window", &Shape::window}});
  return all;
}

std::vector<std::string> words_of(const DecoderMember& member) {
  return std::visit(
      []<class Field>(Field Shape::*) {
        std::vector<std::string> all;
        if constexpr (is_word<Field>) {
          for (const auto& one : words(Field{})) {
            all.emplace_back(one.word);
          }
        }
        return all;
      },
      member);
}

void set_member(Shape& shape, const DecoderMember& member, const ModelValue& value) {
  std::visit(
      [&]<class Field>(Field Shape::* field) {
        if constexpr (is_word<Field>) {
          const auto& word = std::get<std::string>(value);
          for (const auto& one : words(Field{})) {
            if (one.word == word) {
              shape.*field = one.value;
              return;
            }
          }
          fail({.thing = "decoder",
                .wrong = fmt::format("there is no '{}'", shown(word)),
                .expected = join_words(words_of(field))});
        } else {
          shape.*field = std::get<Field>(value);
        }
      },
      member);
}

}  // namespace tessera::models
