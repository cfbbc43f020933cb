module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.plugin;
import tessera.nn;
import :family;
import :decoder_values;
import :decoder_family;
import :family_file;
import :family_tables;

namespace tessera::models {
namespace {

// Keys of sections, and the members that they set.
constexpr NamedField<DecoderTraits> rope_fields[] = {
    named_field<&DecoderTraits::scaled_rope>("scaled"),
    named_field<&DecoderTraits::partial_rope>("partial"),
    named_field<&DecoderTraits::rope_keys>("keys"),
    named_field<&DecoderTraits::rope_alpha>("alpha"),
    named_field<&DecoderTraits::rope_by_layers>("by_layers"),
    named_field<&DecoderTraits::rope_by_pairs>("by_pairs"),
    named_field<&DecoderTraits::rope_growth>("growth"),
    named_field<&DecoderTraits::ignored_rope>("ignored")};
using Defaults = DecoderTraits::HubDefaults;
constexpr NamedField<Defaults> default_fields[] = {
    named_field<&Defaults::max_positions>("max_positions"),
    named_field<&Defaults::head_dim>("head_dim"),
    named_field<&Defaults::kv_heads>("kv_heads"),
    named_field<&Defaults::global_every>("global_every"),
    named_field<&Defaults::ffn_per_dim>("ffn_per_dim"),
    named_field<&Defaults::rope_theta>("rope_theta"),
    named_field<&Defaults::rotary_share>("rotary_share"),
    named_field<&Defaults::norm_eps>("norm_eps"),
    named_field<&Defaults::tie_embeddings>("tie_embeddings")};
constexpr NamedField<HubExperts> expert_fields[] = {
    named_field<&HubExperts::router>("router"),
    named_field<&HubExperts::gate>("gate"),
    named_field<&HubExperts::up>("up"),
    named_field<&HubExperts::down>("down"),
    named_field<&HubExperts::bias>("bias"),
    named_field<&HubExperts::bias_row>("bias_row"),
    named_field<&HubExperts::shared>("shared"),
    named_field<&HubExperts::shared_gate>("shared_gate"),
    named_field<&HubExperts::gate_up>("gate_up"),
    named_field<&HubExperts::all_down>("all_down"),
    named_field<&HubExperts::logit_bias>("logit_bias"),
    named_field<&HubExperts::gate_up_bias>("gate_up_bias"),
    named_field<&HubExperts::down_bias>("down_bias"),
    named_field<&HubExperts::transposed>("transposed"),
    named_field<&HubExperts::alternating>("alternating"),
    named_field<&HubExperts::packed>("packed")};
constexpr NamedField<FurtherTokens> further_fields[] = {
    named_field<&FurtherTokens::keys>("config"),
    named_field<&FurtherTokens::after_layers>("after_layers"),
    named_field<&FurtherTokens::tensors>("tensors")};
constexpr NamedField<FixedHubKey> fixed_fields[] = {named_field<&FixedHubKey::key>("config"),
                                                    named_field<&FixedHubKey::reason>("reason"),
                                                    named_field<&FixedHubKey::written>("written")};
constexpr NamedField<FusedModule> fused_fields[] = {
    named_field<&FusedModule::stored>("stored"), named_field<&FusedModule::parts>("parts"),
    named_field<&FusedModule::by_key_heads>("by_key_heads"),
    named_field<&FusedModule::by_heads>("by_heads")};

/// Reads one file.
class FamilyReader {
 public:
  FamilyReader(const std::string& file, std::string_view text) : in_(file, text) {}

  FamilyFile read() {
    in_.check_names(in_.root(), "",
                    {"family",        "about",      "architecture", "classifier", "like",
                     "begin_token",   "end_token",  "layer_types",  "decoder",    "sizes",
                     "default",       "rope",       "key",          "fixed",      "ignored",
                     "without",       "modules",    "fused",        "experts",    "ignored_tensors",
                     "nested",        "older",      "forms",        "form",       "further_tokens",
                     "nested_global", "each_layer", "gguf"});
    FamilyFile result;
    if (const auto like = in_.take<std::string>(in_.root(), "like", "")) {
      base(*like, result.traits);
    }
    DecoderTraits& traits = result.traits;
    in_.required(in_.root(), "family", result.family);
    in_.required(in_.root(), "architecture", traits.architecture);
    traits.classifier = in_.take<std::string>(in_.root(), "classifier", "").value_or("");
    in_.set(in_.root(), "about", "", result.about);
    check_family(result.family);
    in_.set(in_.root(), "begin_token", "", traits.special_tokens.bos);
    in_.set(in_.root(), "end_token", "", traits.special_tokens.eos);
    in_.set(in_.root(), "layer_types", "", traits.layer_types);
    in_.set(in_.root(), "ignored_tensors", "", traits.ignored_tensors);
    remove(traits);
    read_decoder(traits);
    read_defaults(traits);
    read_names(traits);
    read_family_keys(in_, traits);
    read_fixed(traits);
    read_experts(traits);
    in_.read_texts("older", {}, traits.older_keys);
    read_nested("nested", traits.nested);
    read_nested("nested_global", traits.nested_global);
    in_.set(in_.root(), "each_layer", "", traits.each_layer);
    read_variants(traits);
    read_further(traits);
    read_family_gguf(in_, traits);
    in_.throw_if_any();
    return result;
  }

 private:
  void base(const std::string& like, DecoderTraits& traits) {
    const std::vector<std::string> known = built_in_families();
    const std::string own(in_.root()["family"].value_or(std::string()));
    if (std::ranges::find(known, like) == known.end() || like == own) {
      in_.problem(*in_.root().get("like"),
                  fmt::format("like: there is no built-in family '{}'{} (there are {})",
                              shown(like), did_you_mean(like, known), join_words(known)));
      return;
    }
    traits = decoder_traits(like);
    traits.gguf = {};  // which files a program reads is no property of the computation
  }

  void check_family(const std::string& family) {
    const bool fits =
        !family.empty() && family.size() <= 64 &&
        family.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == std::string::npos;
    if (!fits && in_.root().contains("family")) {
      in_.problem(
          *in_.root().get("family"),
          "family: expected at most 64 of a to z, 0 to 9, '_' and '-', as model_type has them");
    }
  }

  /// What the family that this one is like has, and this one has not.
  void remove(DecoderTraits& traits) {
    std::vector<std::string> names;
    in_.set(in_.root(), "without", "", names);
    for (const std::string& name : names) {
      const std::size_t removed =
          std::erase_if(traits.properties, [&](const auto& one) { return one.key == name; }) +
          std::erase_if(traits.fixed_keys, [&](const auto& one) { return one.key == name; }) +
          std::erase_if(traits.fused, [&](const auto& one) { return one.stored == name; }) +
          traits.nested.erase(name) + std::erase(traits.ignored_keys, name) +
          std::erase(traits.each_layer, name);
      if (removed == 0) {
        in_.problem(*in_.root().get("without"),
                    fmt::format("without: there is no key and no fused module '{}' to remove",
                                shown(name)));
      }
    }
  }

  void read_decoder(DecoderTraits& traits) {
    std::vector<std::pair<DecoderMember, ModelValue>> values;
    if (const toml::table* const table = in_.section("decoder")) {
      in_.read_members(*table, "decoder.", values);
    }
    for (const auto& [found, value] : values) {
      set_member(traits.shape, found, value);
    }
  }

  void read_defaults(DecoderTraits& traits) {
    if (const toml::table* const rope = in_.section("rope")) {
      in_.set_fields(*rope, "rope.", rope_fields, traits);
    }
    const toml::table* const table = in_.section("default");
    if (table == nullptr) {
      return;
    }
    DecoderTraits::HubDefaults& absent = traits.absent;
    in_.set_fields(*table, "default.", default_fields, absent, {"rope"});
    if (const toml::node* const rope = table->get("rope")) {
      absent.rope = json_of(*rope);
      if (!rope->is_table()) {
        in_.problem(*rope, "default.rope: expected a table, as rope_parameters has it");
      }
    }
  }

  void read_names(DecoderTraits& traits) {
    std::vector<std::string> sizes = decoder_size_keys();
    sizes.insert(sizes.end(), {"rope_theta", "rotary_share"});
    in_.read_texts("sizes", sizes, traits.hub_sizes);
    std::vector<std::string> modules = decoder_modules();
    modules.emplace_back("model.layers.*");
    in_.read_texts("modules", modules, traits.hub_modules);
    if (const auto layer = traits.hub_modules.find("model.layers.*");
        layer != traits.hub_modules.end() && std::ranges::count(layer->second, '*') != 1) {
      in_.problem(*in_.root().get("modules"),
                  "modules.'model.layers.*': expected one '*' in the place of the layer's number");
    }
    in_.each("fused", [&](const toml::table& table) { read_fused(in_, table, "", traits.fused); });
  }

  void read_fixed(DecoderTraits& traits) {
    in_.set(in_.root(), "ignored", "", traits.ignored_keys);
    in_.each("fixed", [&](const toml::table& table) {
      FixedHubKey fixed;
      in_.set_fields(table, "fixed.", fixed_fields, fixed, {"value"});
      fixed.json = "null";
      if (const toml::node* const value = table.get("value")) {
        fixed.json = json_of(*value);
      }
      if (fixed.key.empty() || fixed.reason.empty()) {
        in_.problem(table, "fixed: needs `config` and `reason`");
      }
      std::erase_if(traits.fixed_keys, [&](const auto& one) { return one.key == fixed.key; });
      traits.fixed_keys.push_back(std::move(fixed));
    });
  }

  void read_nested(const std::string& name,
                   std::map<std::string, std::map<std::string, std::string>>& to) {
    const toml::table* const table = in_.section(name);
    if (table == nullptr) {
      return;
    }
    for (const auto& [key, node] : *table) {
      if (!node.is_table()) {
        in_.problem(node,
                    name + ": expected a table with the names of keys for the parts of an object");
        continue;
      }
      in_.read_texts(*node.as_table(), fmt::format("{}.{}", name, key.str()), {},
                     to[std::string(key.str())]);
    }
  }

  void read_variants(DecoderTraits& traits) {
    DecoderVariants& variants = traits.variants;
    const toml::table* const table = in_.section("forms");
    if (table != nullptr) {
      in_.check_names(*table, "forms.", {"doc", "absent"});
      in_.set(*table, "doc", "forms.", variants.doc);
      const toml::node* const absent = table->get("absent");
      if (absent == nullptr || !absent->is_table() || variants.doc.empty()) {
        in_.problem(*table, "forms: needs `doc`, and `absent` with the flags of config.json");
        return;
      }
      for (const auto& [key, node] : *absent->as_table()) {
        variants.absent[std::string(key.str())] = flag_of(node);
      }
    }
    in_.each("form", [&](const toml::table& form) {
      if (std::optional<DecoderVariant> variant = read_variant(form, variants.absent)) {
        variants.all.push_back(std::move(*variant));
      }
    });
    if (variants.all.empty() != variants.absent.empty()) {
      in_.problem("[forms] goes with at least one [[form]]");
    }
  }

  std::optional<DecoderVariant> read_variant(const toml::table& table,
                                             const std::map<std::string, std::string>& absent) {
    in_.check_names(table, "form.", {"name", "flags", "key_heads", "decoder", "modules"});
    DecoderVariant variant;
    in_.set(table, "name", "form.", variant.name);
    const toml::node* const flags = table.get("flags");
    if (variant.name.empty() || flags == nullptr || !flags->is_table()) {
      in_.problem(table, "form: needs `name` and `flags`");
      return std::nullopt;
    }
    for (const auto& [key, node] : *flags->as_table()) {
      const std::string name(key.str());
      if (!absent.contains(name)) {
        in_.problem(node, fmt::format("form.flags: forms.absent has no '{}'", shown(name)));
        continue;
      }
      const toml::array* const list = node.as_array();
      for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
        variant.flags[name].push_back(flag_of(*list->get(i)));
      }
      if (list == nullptr) {
        variant.flags[name].push_back(flag_of(node));
      }
    }
    read_key_heads(table, variant);
    if (const toml::node* const decoder = table.get("decoder");
        decoder != nullptr && decoder->is_table()) {
      in_.read_members(*decoder->as_table(), "form.decoder.", variant.members);
    }
    if (const toml::node* const modules = table.get("modules");
        modules != nullptr && modules->is_table()) {
      in_.read_texts(*modules->as_table(), "form.modules", decoder_modules(), variant.modules);
    }
    return variant;
  }

  void read_key_heads(const toml::table& table, DecoderVariant& variant) {
    static const std::map<std::string, KeyHeads> known = {
        {"counted", KeyHeads::counted}, {"one", KeyHeads::one}, {"all", KeyHeads::all}};
    if (const auto word = in_.take<std::string>(table, "key_heads", "form.")) {
      const auto found = known.find(*word);
      if (found == known.end()) {
        in_.problem(table,
                    fmt::format("form.key_heads: there is no '{}' (there are counted, one, all)",
                                shown(*word)));
      } else {
        variant.key_heads = found->second;
      }
    }
  }

  void read_further(DecoderTraits& traits) {
    if (const toml::table* const table = in_.section("further_tokens")) {
      in_.set_fields(*table, "further_tokens.", further_fields, traits.further, {"copies"});
      if (const toml::node* const copies = table->get("copies")) {
        if (copies->is_table()) {
          in_.read_texts(*copies->as_table(), "further_tokens.copies", {}, traits.further.copies);
        } else {
          in_.problem(*copies, "further_tokens.copies: expected names of tensors and parameters");
        }
      }
    }
  }

  void read_experts(DecoderTraits& traits) {
    if (const toml::table* const table = in_.section("experts")) {
      HubExperts experts = traits.experts.value_or(HubExperts());
      in_.set_fields(*table, "experts.", expert_fields, experts);
      traits.experts = experts;
    }
  }

  FamilyTables in_;
};

[[maybe_unused]] const bool declared = plugin::declare_data_files(
    {".family.toml", std::string(ModelFamily::plugin_kind.name),
     [](const std::string& file, std::string_view text, plugin::Registrar& registrar) {
       const FamilyFile read = read_family_file(file, text);
       const std::vector<std::string> built_in = built_in_families();
       if (std::ranges::find(built_in, read.family) != built_in.end()) {
         fail_input({.thing = file,
                     .wrong = fmt::format("the family '{}' is built in", read.family),
                     .advice = "give the file's family another name"});
       }
       registrar.add<ModelFamily>(
           read.family, [traits = read.traits] { return std::make_unique<DecoderFamily>(traits); });
     }});

}  // namespace

void read_fused(FamilyTables& in, const toml::table& table, const std::string& where,
                std::vector<FusedModule>& to) {
  const std::vector<std::string> modules = decoder_modules();
  const std::string name = where + "fused.";
  FusedModule fused;
  in.set_fields(table, name, fused_fields, fused);
  for (const std::string& part : fused.parts) {
    if (std::ranges::find(modules, part) == modules.end()) {
      in.problem(table, fmt::format("{}parts: a layer has no module '{}'{}", name, shown(part),
                                    did_you_mean(part, modules)));
    }
  }
  const std::vector<std::string> heads = {"self_attn.q_proj", "self_attn.k_proj",
                                          "self_attn.v_proj"};
  const auto is_recurrent = [](const std::string& part) { return part.starts_with("recurrent."); };
  const bool recurrent = std::ranges::any_of(fused.parts, is_recurrent);
  if (fused.stored.empty() || fused.parts.empty() ||
      (fused.by_key_heads && !recurrent && fused.parts != heads) ||
      (recurrent && !std::ranges::all_of(fused.parts, is_recurrent))) {
    in.problem(table, where +
                          "fused: needs `stored` and `parts`; with `by_key_heads` the parts are "
                          "self_attn.q_proj, k_proj and v_proj, or those of a recurrent layer");
    return;
  }
  // A folder may have several modules under one name, of layers that differ.
  std::erase_if(
      to, [&](const auto& one) { return one.stored == fused.stored && one.parts == fused.parts; });
  to.push_back(std::move(fused));
}

FamilyFile read_family_file(const std::string& file, std::string_view text) {
  return FamilyReader(file, text).read();
}

}  // namespace tessera::models
