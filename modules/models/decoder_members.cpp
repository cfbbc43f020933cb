// The members of nn::DecoderShape by their names.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_family;
import :decoder_values;

namespace tessera::models {
namespace {

using Shape = nn::DecoderShape;

using Recurrent = nn::RecurrentOptions;
using Width = nn::WidthRule;

template <auto Member>
constexpr auto recurrent_field = decoder_field<&Shape::recurrent, Member>;

template <class Enum>
struct Word {
  Enum value;
  const char* word;
};

using nn::Activation;
using nn::GroupScore;
using nn::HeadNorm;
using nn::OutputGate;
using nn::RecurrentRule;
using nn::RouterScore;
using NormKind = nn::NormOptions::Kind;

// The words of each enumeration, found by its type.
constexpr Word<Activation> activations[] = {{Activation::silu, "silu"},
                                            {Activation::gelu_tanh, "gelu_tanh"},
                                            {Activation::gelu, "gelu"},
                                            {Activation::relu, "relu"},
                                            {Activation::squared_relu, "squared_relu"},
                                            {Activation::xielu, "xielu"}};
constexpr Word<HeadNorm> head_norms[] = {{HeadNorm::none, "none"},
                                         {HeadNorm::shared, "shared"},
                                         {HeadNorm::each, "each"},
                                         {HeadNorm::whole, "whole"}};
constexpr Word<NormKind> norm_kinds[] = {{NormKind::rms, "rms"}, {NormKind::layer, "layer"}};
constexpr Word<OutputGate> output_gates[] = {{OutputGate::silu, "silu"},
                                             {OutputGate::sigmoid, "sigmoid"}};
constexpr Word<RecurrentRule> rules[] = {{RecurrentRule::delta, "delta"},
                                         {RecurrentRule::sum, "sum"},
                                         {RecurrentRule::convolution, "convolution"}};
constexpr Word<RouterScore> scores[] = {{RouterScore::softmax, "softmax"},
                                        {RouterScore::sigmoid, "sigmoid"}};

constexpr Word<GroupScore> group_scores[] = {
    {GroupScore::none, "none"}, {GroupScore::two_best, "two_best"}, {GroupScore::best, "best"}};

constexpr std::span<const Word<GroupScore>> words(GroupScore) { return group_scores; }
constexpr std::span<const Word<Activation>> words(Activation) { return activations; }
constexpr std::span<const Word<HeadNorm>> words(HeadNorm) { return head_norms; }
constexpr std::span<const Word<NormKind>> words(NormKind) { return norm_kinds; }
constexpr std::span<const Word<OutputGate>> words(OutputGate) { return output_gates; }
constexpr std::span<const Word<RecurrentRule>> words(RecurrentRule) { return rules; }
constexpr std::span<const Word<RouterScore>> words(RouterScore) { return scores; }

template <class Field>
constexpr bool is_word = std::is_enum_v<Field>;

using Form = nn::ExpertForm;
using Growth = nn::GrowingLayers;
using nn::GlobalHeads;
using Streams = nn::HiddenStreams;
constexpr auto form = &Shape::expert_form;
constexpr auto growth = &Shape::growth;
constexpr auto global_heads = &Shape::global_heads;
constexpr auto streams = &Shape::streams;

struct Member {
  const char* name;
  DecoderMember member;
};

// Sorted by name.
constexpr Member members[] = {
    {"activation", decoder_field<&Shape::activation>},
    {"attention_gate", decoder_field<&Shape::attention_gate>},
    {"attention_scale", decoder_field<&Shape::attention_scale>},
    {"attention_softcap", decoder_field<&Shape::attention_softcap>},
    {"bias", decoder_field<&Shape::bias>},
    {"chunk", decoder_field<&Shape::chunk>},
    {"dense_layers", decoder_field<&Shape::dense_layers>},
    {"embedding_norm", decoder_field<&Shape::embedding_norm>},
    {"embedding_scale", decoder_field<&Shape::embedding_scale>},
    {"expert_dim", decoder_field<&Shape::expert_dim>},
    {"expert_form.bias", decoder_field<form, &Form::bias>},
    {"expert_form.latent_dim", decoder_field<form, &Form::latent_dim>},
    {"expert_form.limits.most", decoder_field<form, &Form::limits, &nn::GateLimits::most>},
    {"expert_form.limits.slope", decoder_field<form, &Form::limits, &nn::GateLimits::slope>},
    {"expert_form.logit_bias", decoder_field<form, &Form::logit_bias>},
    {"expert_form.weigh_inputs", decoder_field<form, &Form::weigh_inputs>},
    {"expert_groups", decoder_field<&Shape::expert_groups>},
    {"expert_scale", decoder_field<&Shape::expert_scale>},
    {"experts", decoder_field<&Shape::experts>},
    {"experts_every", decoder_field<&Shape::experts_every>},
    {"experts_per_token", decoder_field<&Shape::experts_per_token>},
    {"ffn_bias", decoder_field<&Shape::ffn_bias>},
    {"first_dense_layers", decoder_field<&Shape::first_dense_layers>},
    {"gate_sparsity", decoder_field<&Shape::gate_sparsity>},
    {"gated", decoder_field<&Shape::gated>},
    {"global_every", decoder_field<&Shape::global_every>},
    {"global_heads.head_dim", decoder_field<global_heads, &GlobalHeads::head_dim>},
    {"global_heads.keys_as_values", decoder_field<global_heads, &GlobalHeads::keys_as_values>},
    {"global_heads.kv_heads", decoder_field<global_heads, &GlobalHeads::kv_heads>},
    {"global_layers", decoder_field<&Shape::global_layers>},
    {"group_score", decoder_field<&Shape::group_score>},
    {"groups_per_token", decoder_field<&Shape::groups_per_token>},
    {"growth.enabled", decoder_field<growth, &Growth::enabled>},
    {"growth.first", decoder_field<growth, &Growth::queries, &nn::QueryGrowth::first>},
    {"growth.period", decoder_field<growth, &Growth::queries, &nn::QueryGrowth::period>},
    {"growth.scale", decoder_field<growth, &Growth::queries, &nn::QueryGrowth::scale>},
    {"growth.unrotated_only", decoder_field<growth, &Growth::unrotated_only>},
    {"head_bias", decoder_field<&Shape::head_bias>},
    {"head_norm_bias", decoder_field<&Shape::head_norm_bias>},
    {"head_norm_weight", decoder_field<&Shape::head_norm_weight>},
    {"last_expert_layer", decoder_field<&Shape::last_expert_layer>},
    {"latent_rank", decoder_field<&Shape::latent_rank>},
    {"layer_embedding_dim", decoder_field<&Shape::layer_embedding_dim>},
    {"layer_embedding_vocab", decoder_field<&Shape::layer_embedding_vocab>},
    {"layer_scale", decoder_field<&Shape::layer_scale>},
    {"local_rope_theta", decoder_field<&Shape::local_rope_theta>},
    {"local_unscaled", decoder_field<&Shape::local_unscaled>},
    {"logit_base", decoder_field<&Shape::logit_base>},
    {"logit_divisor", decoder_field<&Shape::logit_divisor>},
    {"logit_scale", decoder_field<&Shape::logit_scale>},
    {"logit_softcap", decoder_field<&Shape::logit_softcap>},
    {"norm_after_rotation", decoder_field<&Shape::norm_after_rotation>},
    {"norm_bias", decoder_field<&Shape::norm_bias>},
    {"norm_eps", decoder_field<&Shape::norm_eps>},
    {"norm_inputs", decoder_field<&Shape::norm_inputs>},
    {"norm_kind", decoder_field<&Shape::norm_kind>},
    {"norm_offset", decoder_field<&Shape::norm_offset>},
    {"norm_results", decoder_field<&Shape::norm_results>},
    {"norm_rotated_only", decoder_field<&Shape::norm_rotated_only>},
    {"norm_weight", decoder_field<&Shape::norm_weight>},
    {"normalize_experts", decoder_field<&Shape::normalize_experts>},
    {"output_bias", decoder_field<&Shape::output_bias>},
    {"parallel_block", decoder_field<&Shape::parallel_block>},
    {"parallel_norms", decoder_field<&Shape::parallel_norms>},
    {"plain_dim", decoder_field<&Shape::plain_dim>},
    {"qkv_clip", decoder_field<&Shape::qkv_clip>},
    {"query_key_norm", decoder_field<&Shape::query_key_norm>},
    {"query_rank", decoder_field<&Shape::query_rank>},
    {"residual_depth", decoder_field<&Shape::residual_depth>},
    {"residual_rank", decoder_field<&Shape::residual_rank>},
    {"residual_scale", decoder_field<&Shape::residual_scale>},
    {"rope_limit", decoder_field<&Shape::rope_limit>},
    {"rope_stretch", decoder_field<&Shape::rope_stretch>},
    {"rope_theta", decoder_field<&Shape::rope_theta>},
    {"rotary_dim", decoder_field<&Shape::rotary_dim>},
    {"rotary_pairs", decoder_field<&Shape::rotary_pairs>},
    {"rotary_reversed", decoder_field<&Shape::rotary_reversed>},
    {"rotary_share", decoder_field<&Shape::rotary_share>},
    {"rotate_local_only", decoder_field<&Shape::rotate_local_only>},
    {"rotated_dim", decoder_field<&Shape::rotated_dim>},
    {"router_bias", decoder_field<&Shape::router_bias>},
    {"router_score", decoder_field<&Shape::router_score>},
    {"scale_embeddings", decoder_field<&Shape::scale_embeddings>},
    {"score_dim", decoder_field<&Shape::score_dim>},
    {"shared_expert_dim", decoder_field<&Shape::shared_expert_dim>},
    {"shared_expert_gate", decoder_field<&Shape::shared_expert_gate>},
    {"shared_experts", decoder_field<&Shape::shared_experts>},
    {"shared_key_layers", decoder_field<&Shape::shared_key_layers>},
    {"sinks", decoder_field<&Shape::sinks>},
    {"streams.active", decoder_field<streams, &Streams::active>},
    {"streams.count", decoder_field<streams, &Streams::count>},
    {"streams.most", decoder_field<streams, &Streams::most>},
    {"streams.scaled", decoder_field<streams, &Streams::scaled>},
    {"tie_embeddings", decoder_field<&Shape::tie_embeddings>},
    {"unrotated_every", decoder_field<&Shape::unrotated_every>},
    {"unrotated_layers", decoder_field<&Shape::unrotated_layers>},
    {"value_dim", decoder_field<&Shape::value_dim>},
    {"value_norm", decoder_field<&Shape::value_norm>},
    {"wide_shared_layers", decoder_field<&Shape::wide_shared_layers>},
    {"window", decoder_field<&Shape::window>}};
static_assert(std::ranges::is_sorted(members, {},
                                     [](const Member& one) { return std::string_view(one.name); }));

/// Those of the kinds of layers, and of recurrent ones.
std::vector<NamedDecoderMember> layer_members() {
  return {{"layer_pattern", decoder_field<&Shape::layer_pattern>},
          {"one_part", decoder_field<&Shape::one_part>},
          {"shared_dense", decoder_field<&Shape::shared_dense>},
          {"unrotated", decoder_field<&Shape::unrotated>},
          {"ffn_rule.factor", decoder_field<&Shape::ffn_rule, &Width::factor>},
          {"ffn_rule.gated_share", decoder_field<&Shape::ffn_rule, &Width::gated_share>},
          {"ffn_rule.multiple", decoder_field<&Shape::ffn_rule, &Width::multiple>},
          {"recurrent.activation", recurrent_field<&Recurrent::activation>},
          {"recurrent.bias", recurrent_field<&Recurrent::bias>},
          {"recurrent.convolution_bias", recurrent_field<&Recurrent::convolution_bias>},
          {"recurrent.expand", recurrent_field<&Recurrent::expand>},
          {"recurrent.gate", recurrent_field<&Recurrent::gate>},
          {"recurrent.gate_rank", recurrent_field<&Recurrent::gate_rank>},
          {"recurrent.kernel", recurrent_field<&Recurrent::kernel>},
          {"recurrent.key_dim", recurrent_field<&Recurrent::key_dim>},
          {"recurrent.key_heads", recurrent_field<&Recurrent::key_heads>},
          {"recurrent.rule", recurrent_field<&Recurrent::rule>},
          {"recurrent.step_high", recurrent_field<&Recurrent::step_high>},
          {"recurrent.step_low", recurrent_field<&Recurrent::step_low>},
          {"recurrent.value_dim", recurrent_field<&Recurrent::value_dim>},
          {"recurrent.value_heads", recurrent_field<&Recurrent::value_heads>}};
}

}  // namespace

std::span<const NamedDecoderMember> decoder_members() {
  static const std::vector<NamedDecoderMember> all = [] {
    std::vector<NamedDecoderMember> list;
    for (const Member& one : members) {
      list.push_back({one.name, one.member});
    }
    for (NamedDecoderMember& one : layer_members()) {
      list.push_back(std::move(one));
    }
    std::ranges::sort(list, {}, &NamedDecoderMember::name);
    return list;
  }();
  return all;
}

namespace {

template <class Field>
const DecoderProperty* setting_of(const DecoderTraits& traits, Field nn::DecoderShape::* member) {
  nn::DecoderShape any;
  for (const DecoderProperty& property : traits.properties) {
    for (const DecoderMember& one : property.members) {
      const auto* const at = std::get_if<DecoderField<Field>>(&one);
      if (at != nullptr && &(*at)(any) == &(any.*member)) {
        return &property;
      }
    }
  }
  return nullptr;
}

}  // namespace

const DecoderProperty* property_of(const DecoderTraits& traits,
                                   std::int64_t nn::DecoderShape::* member) {
  return setting_of(traits, member);
}
const DecoderProperty* property_of(const DecoderTraits& traits,
                                   std::vector<std::int64_t> nn::DecoderShape::* member) {
  return setting_of(traits, member);
}
const DecoderProperty* property_of(const DecoderTraits& traits,
                                   std::string nn::DecoderShape::* member) {
  return setting_of(traits, member);
}

std::vector<std::string> words_of(const DecoderMember& member) {
  return std::visit(
      []<class Field>(DecoderField<Field>) {
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
      [&]<class Field>(DecoderField<Field> at) {
        if constexpr (is_word<Field>) {
          const auto& word = std::get<std::string>(value);
          for (const auto& one : words(Field{})) {
            if (one.word == word) {
              at(shape) = one.value;
              return;
            }
          }
          fail({.thing = "decoder",
                .wrong = fmt::format("there is no '{}'", shown(word)),
                .expected = join_words(words_of(at))});
        } else {
          at(shape) = std::get<Field>(value);
        }
      },
      member);
}

}  // namespace tessera::models
