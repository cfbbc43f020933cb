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
import :gguf_form;
import :family;
import :decoder_values;
import :decoder_family;
import :family_file;
import :hub_forms;

namespace tessera::models {
namespace {

constexpr std::size_t largest_file = 1'000'000;
constexpr std::size_t longest_list = 1000;

/// The value of a property has the type of the member that it sets.
ModelValue empty_value(const DecoderMember& member) {
  return std::visit(
      []<class Field>(DecoderField<Field>) -> ModelValue {
        if constexpr (std::is_enum_v<Field>) {
          return std::string();
        } else {
          return Field{};
        }
      },
      member);
}

const char* type_text(const ModelValue& value) {
  constexpr const char* texts[] = {"true or false", "an integer",         "a number",
                                   "a text",        "a list of integers", "a list of numbers"};
  return texts[value.index()];
}

/// Reads one file, and collects what is wrong with it.
class FamilyReader {
 public:
  FamilyReader(const std::string& file, std::string_view text) : file_(file) {
    if (text.size() > largest_file) {
      fail_input({.thing = file,
                  .wrong = "it is too large for a family file",
                  .expected = fmt::format("at most {} bytes", largest_file),
                  .got = fmt::format("{}", text.size())});
    }
    try {
      root_ = toml::parse(text, file);
    } catch (const toml::parse_error& error) {
      fail_input({.thing = fmt::format("{}:{}", file, error.source().begin.line),
                  .wrong = std::string(error.description())});
    }
  }

  FamilyFile read() {
    check_names(root_, "",
                {"family",        "about",      "architecture", "classifier", "like",
                 "begin_token",   "end_token",  "layer_types",  "decoder",    "sizes",
                 "default",       "rope",       "key",          "fixed",      "ignored",
                 "without",       "modules",    "fused",        "experts",    "ignored_tensors",
                 "nested",        "older",      "forms",        "form",       "further_tokens",
                 "nested_global", "each_layer", "gguf"});
    FamilyFile result;
    if (const auto like = take<std::string>(root_, "like", "")) {
      base(*like, result.traits);
    }
    DecoderTraits& traits = result.traits;
    required(root_, "family", result.family);
    required(root_, "architecture", traits.architecture);
    traits.classifier = take<std::string>(root_, "classifier", "").value_or("");
    set(root_, "about", "", result.about);
    check_family(result.family);
    set(root_, "begin_token", "", traits.special_tokens.bos);
    set(root_, "end_token", "", traits.special_tokens.eos);
    set(root_, "layer_types", "", traits.layer_types);
    set(root_, "ignored_tensors", "", traits.ignored_tensors);
    remove(traits);
    read_decoder(traits);
    read_defaults(traits);
    read_names(traits);
    read_keys(traits);
    read_fixed(traits);
    read_experts(traits);
    read_texts("older", {}, traits.older_keys);
    read_nested("nested", traits.nested);
    read_nested("nested_global", traits.nested_global);
    set(root_, "each_layer", "", traits.each_layer);
    read_variants(traits);
    read_further(traits);
    read_gguf(traits);
    throw_if_any();
    return result;
  }

 private:
  static std::string line_of(const toml::node& node) {
    return fmt::format("{}", node.source().begin.line);
  }
  void problem(const toml::node& node, const std::string& text) {
    problems_.push_back(fmt::format("{}:{}: {}", file_, line_of(node), text));
  }

  void throw_if_any() const {
    if (problems_.size() == 1) {
      fail_input(problems_[0]);
    }
    if (!problems_.empty()) {
      std::string text = fmt::format("{}: {} problems", file_, problems_.size());
      constexpr std::size_t most = 30;
      for (const std::string& one : problems_ | std::views::take(most)) {
        text += "\n  " + one;
      }
      const std::size_t more = problems_.size() - std::min(most, problems_.size());
      fail_input(text + (more == 0 ? "" : fmt::format("\n  and {} more", more)));
    }
  }

  void check_names(const toml::table& table, const std::string& where,
                   const std::vector<std::string>& known) {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      if (std::ranges::find(known, name) == known.end()) {
        problem(node, fmt::format("{}{}: unknown key{} (there are {})", where, shown(name),
                                  did_you_mean(name, known), join_words(known)));
      }
    }
  }

  /// The node as a value of the type that `to` has.
  std::optional<ModelValue> value_of(const toml::node& node, const ModelValue& like) const {
    if (std::holds_alternative<bool>(like)) {
      const auto value = node.value_exact<bool>();
      return value ? std::optional<ModelValue>(*value) : std::nullopt;
    }
    if (std::holds_alternative<std::int64_t>(like)) {
      const auto value = node.value_exact<std::int64_t>();
      return value ? std::optional<ModelValue>(*value) : std::nullopt;
    }
    if (std::holds_alternative<double>(like)) {
      const auto value = node.value<double>();
      return value && std::isfinite(*value) && !node.is_boolean()
                 ? std::optional<ModelValue>(*value)
                 : std::nullopt;
    }
    if (std::holds_alternative<std::string>(like)) {
      const auto value = node.value_exact<std::string>();
      return value ? std::optional<ModelValue>(*value) : std::nullopt;
    }
    return std::holds_alternative<std::vector<double>>(like) ? list_of<double>(node)
                                                             : list_of<std::int64_t>(node);
  }

  template <class Number>
  std::optional<ModelValue> list_of(const toml::node& node) const {
    std::vector<Number> list;
    const toml::array* const array = node.as_array();
    if (array == nullptr || array->size() > longest_list) {
      return std::nullopt;
    }
    for (const toml::node& one : *array) {
      const std::optional<ModelValue> value = value_of(one, ModelValue(Number{}));
      if (!value) {
        return std::nullopt;
      }
      list.push_back(std::get<Number>(*value));
    }
    return list;
  }

  std::optional<ModelValue> read_value(const toml::node& node, const std::string& name,
                                       const ModelValue& like) {
    std::optional<ModelValue> value = value_of(node, like);
    if (!value) {
      problem(node, fmt::format("{}: expected {}", name, type_text(like)));
    }
    return value;
  }

  template <class T>
  std::optional<T> take(const toml::table& table, const std::string& key,
                        const std::string& where) {
    const toml::node* const node = table.get(key);
    if (node == nullptr) {
      return std::nullopt;
    }
    const std::optional<ModelValue> value = read_value(*node, where + key, ModelValue(T{}));
    return value ? std::optional<T>(std::get<T>(*value)) : std::nullopt;
  }

  template <class T>
  void set(const toml::table& table, const std::string& key, const std::string& where, T& to) {
    if (const std::optional<T> value = take<T>(table, key, where)) {
      to = *value;
    }
  }

  void set(const toml::table& table, const std::string& key, const std::string& where,
           std::vector<std::string>& to) {
    const toml::node* const node = table.get(key);
    if (node == nullptr) {
      return;
    }
    const toml::array* const list = node->as_array();
    std::vector<std::string> texts;
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      if (const auto text = list->get(i)->value_exact<std::string>()) {
        texts.push_back(*text);
      }
    }
    if (list == nullptr || texts.size() != list->size() || texts.size() > longest_list) {
      problem(*node,
              fmt::format("{}{}: expected a list of at most {} texts", where, key, longest_list));
      return;
    }
    to.insert(to.end(), texts.begin(), texts.end());
  }

  void required(const toml::table& table, const std::string& key, std::string& to) {
    if (!table.contains(key)) {
      problems_.push_back(fmt::format("{}: {} is missing", file_, key));
    }
    set(table, key, "", to);
  }

  /// The table of this name; null: there is none.
  const toml::table* section(const std::string& name) {
    const toml::node* const node = root_.get(name);
    if (node != nullptr && !node->is_table()) {
      problem(*node, fmt::format("{}: expected a table", name));
    }
    return node == nullptr ? nullptr : node->as_table();
  }

  /// Calls `read` with each table of a list.
  void each(const std::string& name, const std::function<void(const toml::table&)>& read) {
    each(root_, name, "", read);
  }
  /// `where`: what `name` is in, with a dot.
  void each(const toml::table& table, const std::string& name, const std::string& where,
            const std::function<void(const toml::table&)>& read) {
    const toml::node* const node = table.get(name);
    if (node == nullptr) {
      return;
    }
    const toml::array* const list = node->as_array();
    const bool fits = list != nullptr && list->size() <= longest_list &&
                      std::ranges::all_of(*list, [](const auto& one) { return one.is_table(); });
    if (!fits) {
      problem(*node, fmt::format("{0}{1}: expected at most {2} tables, [[{0}{1}]]", where, name,
                                 longest_list));
      return;
    }
    for (const toml::node& one : *list) {
      read(*one.as_table());
    }
  }

  void base(const std::string& like, DecoderTraits& traits) {
    const std::vector<std::string> known = built_in_families();
    const std::string own(root_["family"].value_or(std::string()));
    if (std::ranges::find(known, like) == known.end() || like == own) {
      problem(*root_.get("like"),
              fmt::format("like: there is no built-in family '{}'{} (there are {})", shown(like),
                          did_you_mean(like, known), join_words(known)));
      return;
    }
    traits = decoder_traits(like);
    traits.gguf = {};  // which files a program reads is no property of the computation
  }

  void check_family(const std::string& family) {
    const bool fits =
        !family.empty() && family.size() <= 64 &&
        family.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == std::string::npos;
    if (!fits && root_.contains("family")) {
      problem(*root_.get("family"),
              "family: expected at most 64 of a to z, 0 to 9, '_' and '-', as model_type has them");
    }
  }

  /// What the family that this one is like has, and this one has not.
  void remove(DecoderTraits& traits) {
    std::vector<std::string> names;
    set(root_, "without", "", names);
    for (const std::string& name : names) {
      const std::size_t removed =
          std::erase_if(traits.properties, [&](const auto& one) { return one.key == name; }) +
          std::erase_if(traits.fixed_keys, [&](const auto& one) { return one.key == name; }) +
          std::erase_if(traits.fused, [&](const auto& one) { return one.stored == name; }) +
          traits.nested.erase(name) + std::erase(traits.ignored_keys, name) +
          std::erase(traits.each_layer, name);
      if (removed == 0) {
        problem(*root_.get("without"),
                fmt::format("without: there is no key and no fused module '{}' to remove",
                            shown(name)));
      }
    }
  }

  const NamedDecoderMember* member(const toml::node& node, const std::string& name) {
    const std::span<const NamedDecoderMember> all = decoder_members();
    const auto found = std::ranges::find(all, name, &NamedDecoderMember::name);
    if (found != all.end()) {
      return &*found;
    }
    std::vector<std::string> known;
    for (const NamedDecoderMember& one : all) {
      known.push_back(one.name);
    }
    problem(node, fmt::format("there is no property '{}' of decoders{}; docs/family-files.md lists "
                              "them",
                              shown(name), did_you_mean(name, known)));
    return nullptr;
  }

  bool is_word(const toml::node& node, const std::string& name, const DecoderMember& member,
               const ModelValue& value) {
    const std::vector<std::string> words = words_of(member);
    const auto* const word = std::get_if<std::string>(&value);
    if (word == nullptr || words.empty() || std::ranges::find(words, *word) != words.end()) {
      return true;
    }
    problem(node, fmt::format("{}: there is no '{}'{} (there are {})", name, shown(*word),
                              did_you_mean(*word, words), join_words(words)));
    return false;
  }

  void read_members(const toml::table& table, const std::string& where,
                    std::vector<std::pair<DecoderMember, ModelValue>>& to) {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      const NamedDecoderMember* const found = member(node, name);
      if (found == nullptr) {
        continue;
      }
      const auto value = read_value(node, where + name, empty_value(found->member));
      if (value && is_word(node, where + name, found->member, *value)) {
        to.emplace_back(found->member, *value);
      }
    }
  }

  void read_decoder(DecoderTraits& traits) {
    std::vector<std::pair<DecoderMember, ModelValue>> values;
    if (const toml::table* const table = section("decoder")) {
      read_members(*table, "decoder.", values);
    }
    for (const auto& [found, value] : values) {
      set_member(traits.shape, found, value);
    }
  }

  void read_defaults(DecoderTraits& traits) {
    if (const toml::table* const rope = section("rope")) {
      check_names(
          *rope, "rope.",
          {"scaled", "partial", "keys", "alpha", "by_layers", "by_pairs", "growth", "ignored"});
      set(*rope, "ignored", "rope.", traits.ignored_rope);
      set(*rope, "scaled", "rope.", traits.scaled_rope);
      set(*rope, "partial", "rope.", traits.partial_rope);
      set(*rope, "keys", "rope.", traits.rope_keys);
      set(*rope, "alpha", "rope.", traits.rope_alpha);
      set(*rope, "by_layers", "rope.", traits.rope_by_layers);
      set(*rope, "by_pairs", "rope.", traits.rope_by_pairs);
      set(*rope, "growth", "rope.", traits.rope_growth);
    }
    const toml::table* const table = section("default");
    if (table == nullptr) {
      return;
    }
    check_names(*table, "default.",
                {"max_positions", "head_dim", "kv_heads", "ffn_per_dim", "rope_theta",
                 "rotary_share", "norm_eps", "tie_embeddings", "global_every", "rope"});
    DecoderTraits::HubDefaults& absent = traits.absent;
    if (const toml::node* const rope = table->get("rope")) {
      absent.rope = json_of(*rope);
      if (!rope->is_table()) {
        problem(*rope, "default.rope: expected a table, as rope_parameters has it");
      }
    }
    for (auto& [key, to] : {std::pair{"max_positions", &absent.max_positions},
                            {"head_dim", &absent.head_dim},
                            {"kv_heads", &absent.kv_heads},
                            {"global_every", &absent.global_every}}) {
      set(*table, key, "default.", *to);
    }
    for (auto& [key, to] : {std::pair{"ffn_per_dim", &absent.ffn_per_dim},
                            {"rope_theta", &absent.rope_theta},
                            {"rotary_share", &absent.rotary_share},
                            {"norm_eps", &absent.norm_eps}}) {
      set(*table, key, "default.", *to);
    }
    set(*table, "tie_embeddings", "default.", absent.tie_embeddings);
  }

  /// Texts by name. `known`: the names that there can be; empty: any.
  void read_texts(const toml::table& table, const std::string& name,
                  const std::vector<std::string>& known, std::map<std::string, std::string>& to) {
    if (!known.empty()) {
      check_names(table, name + ".", known);
    }
    for (const auto& [key, node] : table) {
      if (const auto text =
              read_value(node, fmt::format("{}.{}", name, key.str()), std::string())) {
        to[std::string(key.str())] = std::get<std::string>(*text);
      }
    }
  }
  void read_texts(const std::string& name, const std::vector<std::string>& known,
                  std::map<std::string, std::string>& to) {
    if (const toml::table* const table = section(name)) {
      read_texts(*table, name, known, to);
    }
  }

  void read_names(DecoderTraits& traits) {
    std::vector<std::string> sizes = decoder_size_keys();
    sizes.insert(sizes.end(), {"rope_theta", "rotary_share"});
    read_texts("sizes", sizes, traits.hub_sizes);
    std::vector<std::string> modules = decoder_modules();
    modules.emplace_back("model.layers.*");
    read_texts("modules", modules, traits.hub_modules);
    if (const auto layer = traits.hub_modules.find("model.layers.*");
        layer != traits.hub_modules.end() && std::ranges::count(layer->second, '*') != 1) {
      problem(*root_.get("modules"),
              "modules.'model.layers.*': expected one '*' in the place of the layer's number");
    }
    each("fused", [&](const toml::table& table) { read_fused(table, "", traits.fused); });
  }

  /// `where`: what the table is in, with a dot.
  void read_fused(const toml::table& table, const std::string& where,
                  std::vector<FusedModule>& to) {
    const std::vector<std::string> modules = decoder_modules();
    const std::string name = where + "fused.";
    check_names(table, name, {"stored", "parts", "by_key_heads", "by_heads"});
    FusedModule fused;
    set(table, "stored", name, fused.stored);
    set(table, "parts", name, fused.parts);
    set(table, "by_key_heads", name, fused.by_key_heads);
    set(table, "by_heads", name, fused.by_heads);
    for (const std::string& part : fused.parts) {
      if (std::ranges::find(modules, part) == modules.end()) {
        problem(table, fmt::format("{}parts: a layer has no module '{}'{}", name, shown(part),
                                   did_you_mean(part, modules)));
      }
    }
    const std::vector<std::string> heads = {"self_attn.q_proj", "self_attn.k_proj",
                                            "self_attn.v_proj"};
    const auto is_recurrent = [](const std::string& part) {
      return part.starts_with("recurrent.");
    };
    const bool recurrent = std::ranges::any_of(fused.parts, is_recurrent);
    if (fused.stored.empty() || fused.parts.empty() ||
        (fused.by_key_heads && !recurrent && fused.parts != heads) ||
        (recurrent && !std::ranges::all_of(fused.parts, is_recurrent))) {
      problem(table, where +
                         "fused: needs `stored` and `parts`; with `by_key_heads` the parts are "
                         "self_attn.q_proj, k_proj and v_proj, or those of a recurrent layer");
      return;
    }
    // A folder may have several modules under one name, of layers that differ.
    std::erase_if(to, [&](const auto& one) {
      return one.stored == fused.stored && one.parts == fused.parts;
    });
    to.push_back(std::move(fused));
  }

  void read_keys(DecoderTraits& traits) {
    std::vector<const toml::table*> keys;
    each("key", [&](const toml::table& table) {
      keys.push_back(&table);
      if (std::optional<DecoderProperty> property = read_key(table)) {
        const auto same =
            std::ranges::find(traits.properties, property->key, &DecoderProperty::key);
        if (same != traits.properties.end()) {
          *same = std::move(*property);
        } else {
          traits.properties.push_back(std::move(*property));
        }
      }
    });
    for (const toml::table* const key : keys) {
      check_replaced(*key, traits);
    }
  }

  /// What `replaces` names is a key of the family: every so many-th layer.
  void check_replaced(const toml::table& table, const DecoderTraits& traits) {
    const toml::node* const node = table.get("replaces");
    const auto name = node == nullptr ? std::nullopt : node->value<std::string>();
    const auto found =
        std::ranges::find(traits.properties, name.value_or(""), &DecoderProperty::key);
    if (name && !name->empty() &&
        (found == traits.properties.end() ||
         !std::holds_alternative<std::int64_t>(found->initial))) {
      problem(*node, fmt::format("key.replaces: the family has no key '{}' that is a whole number",
                                 shown(*name)));
    }
  }

  std::optional<DecoderProperty> read_key(const toml::table& table) {
    check_names(table, "key.", {"name",    "config",   "also",  "sets",  "initial",  "absent",
                                "doc",     "low",      "high",  "above", "whole",    "counts",
                                "zeros",   "others",   "marks", "words", "replaces", "layers",
                                "indices", "interval", "entry", "none",  "begin",    "last"});
    DecoderProperty property;
    set(table, "name", "key.", property.key);
    set(table, "config", "key.", property.hub);
    set(table, "doc", "key.", property.doc);
    std::vector<std::string> names;
    set(table, "sets", "key.", names);
    if (names.empty()) {
      names.push_back(property.key);
    }
    for (const std::string& name : names) {
      if (const NamedDecoderMember* const found = member(table, name)) {
        property.members.push_back(found->member);
      }
    }
    for (const auto& [text, missing] : {std::pair{"name", property.key.empty()},
                                        {"config", property.hub.empty()},
                                        {"doc", property.doc.empty()},
                                        {"initial", !table.contains("initial")}}) {
      if (missing) {
        problem(table, fmt::format("key: {} is missing", text));
        return std::nullopt;
      }
    }
    if (property.members.size() != names.size()) {
      return std::nullopt;
    }
    return read_key_values(table, property) && read_form(table, property)
               ? std::optional(std::move(property))
               : std::nullopt;
  }

  /// Pairs of texts, "of config.json" and "here".
  HubWords read_words(const toml::node& node, const DecoderProperty& property, bool letters) {
    HubWords words;
    const toml::array* const list = node.as_array();
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const toml::array* const pair = list->get(i)->as_array();
      const auto text = [&](std::size_t at) {
        return pair != nullptr && pair->size() == 2 ? pair->get(at)->value_exact<std::string>()
                                                    : std::nullopt;
      };
      const auto hub = text(0);
      const auto own = text(1);
      if (!hub || !own) {
        problem(node, "key.words: expected pairs of texts, [\"of config.json\", \"here\"]");
        return words;
      }
      if (letters && own->size() != 1) {
        problem(node, "key.layers: expected pairs of a text and the letter of a kind of layers");
      }
      if (is_word(node, "key.words", property.members[0], *own)) {
        words.emplace_back(*hub, *own);
      }
    }
    return words;
  }

  std::shared_ptr<const HubForm> form_of_layers(const toml::table& table,
                                                const DecoderProperty& property) {
    std::string replaces;
    set(table, "replaces", "key.", replaces);
    if (take<bool>(table, "zeros", "key.").value_or(false)) {
      return std::make_shared<ZerosForm>(replaces);
    }
    if (take<bool>(table, "others", "key.").value_or(false)) {
      return std::make_shared<OthersForm>(replaces);
    }
    std::vector<std::string> marks;
    set(table, "marks", "key.", marks);
    if (marks.empty() && !replaces.empty()) {
      problem(table, "key: `replaces` goes with `zeros`, `others` and `marks`");
    }
    if (marks.empty()) {
      if (table.contains("last")) {
        problem(table, "key: `last` goes with `marks`");
      }
      return nullptr;
    }
    if (marks.size() != 2) {
      problem(table,
              "key.marks: expected two texts, that of the property's layers and that of all "
              "others");
      return nullptr;
    }
    nn::DecoderShape any;
    const bool has_last = take<bool>(table, "last", "key.").value_or(false);
    const auto* const at =
        std::get_if<DecoderField<std::vector<std::int64_t>>>(&property.members.front());
    if (at != nullptr && &(*at)(any) == &any.global_layers) {
      return std::make_shared<LayerTypesForm>(marks[0], marks[1], replaces, has_last);
    }
    if (has_last) {
      problem(table, "key.last: goes with the property global_layers");
    }
    if (at != nullptr && &(*at)(any) == &any.dense_layers) {
      return std::make_shared<DenseLayersForm>(marks[0], marks[1], replaces);
    }
    return std::make_shared<MarksForm>(marks[0], marks[1], replaces);
  }

  /// Without one of these words in the table the form is the usual one of the value.
  std::shared_ptr<const HubForm> named_form(const toml::table& table,
                                            const DecoderProperty& property) {
    if (auto form = form_of_layers(table, property)) {
      return form;
    }
    if (const toml::node* const words = table.get("layers")) {
      PatternForm::Options options{.words = read_words(*words, property, true)};
      set(table, "also", "key.", options.also);
      set(table, "indices", "key.", options.indices);
      set(table, "interval", "key.", options.interval);
      set(table, "begin", "key.", options.begin);
      return std::make_shared<PatternForm>(std::move(options));
    }
    if (const toml::node* const words = table.get("words")) {
      return std::make_shared<WordForm>(read_words(*words, property, false));
    }
    if (const auto entry = take<std::int64_t>(table, "entry", "key.")) {
      return std::make_shared<PairForm>(*entry);
    }
    if (take<bool>(table, "whole", "key.").value_or(false)) {
      return std::make_shared<NumberForm>(true);
    }
    IntegerForm::Options options;
    set(table, "also", "key.", options.also);
    set(table, "none", "key.", options.none);
    set(table, "counts", "key.", options.counts);
    const bool is_plain = options.also.empty() && options.none.empty() && !options.counts;
    return is_plain ? nullptr : std::make_shared<IntegerForm>(std::move(options));
  }

  bool read_form(const toml::table& table, DecoderProperty& property) {
    property.form = named_form(table, property);
    const bool is_text = std::holds_alternative<std::string>(property.initial);
    if (property.form ? property.form->fits(property.initial) : !is_text) {
      return true;
    }
    problem(table,
            "key: `words` are for properties that are texts, `zeros`, `others` and `marks` for "
            "lists, `counts` for integers");
    return false;
  }

  bool read_key_values(const toml::table& table, DecoderProperty& property) {
    const ModelValue type = empty_value(property.members[0]);
    for (const DecoderMember& member : property.members) {
      if (empty_value(member).index() != type.index()) {
        problem(table, "key.sets: the properties have different types");
        return false;
      }
    }
    const auto initial = read_value(*table.get("initial"), "key.initial", type);
    const toml::node* const absent = table.get("absent");
    const auto missing = absent == nullptr ? initial : read_value(*absent, "key.absent", type);
    if (!initial || !missing || !is_word(table, "key.initial", property.members[0], *initial) ||
        !is_word(table, "key.absent", property.members[0], *missing)) {
      return false;
    }
    property.initial = *initial;
    property.absent = *missing;
    property.range.low = take<double>(table, "low", "key.");
    property.range.high = take<double>(table, "high", "key.");
    if (const auto above = take<double>(table, "above", "key.")) {
      property.range.low = above;
      property.range.low_open = true;
    }
    return true;
  }

  static std::string json_of(const toml::node& node) {
    std::ostringstream text;
    text << toml::json_formatter(node);
    return text.str();
  }

  void read_fixed(DecoderTraits& traits) {
    set(root_, "ignored", "", traits.ignored_keys);
    each("fixed", [&](const toml::table& table) {
      check_names(table, "fixed.", {"config", "value", "reason", "written"});
      FixedHubKey fixed;
      set(table, "config", "fixed.", fixed.key);
      set(table, "reason", "fixed.", fixed.reason);
      set(table, "written", "fixed.", fixed.written);
      fixed.json = "null";
      if (const toml::node* const value = table.get("value")) {
        fixed.json = json_of(*value);
      }
      if (fixed.key.empty() || fixed.reason.empty()) {
        problem(table, "fixed: needs `config` and `reason`");
      }
      std::erase_if(traits.fixed_keys, [&](const auto& one) { return one.key == fixed.key; });
      traits.fixed_keys.push_back(std::move(fixed));
    });
  }

  void read_nested(const std::string& name,
                   std::map<std::string, std::map<std::string, std::string>>& to) {
    const toml::table* const table = section(name);
    if (table == nullptr) {
      return;
    }
    for (const auto& [key, node] : *table) {
      if (!node.is_table()) {
        problem(node,
                name + ": expected a table with the names of keys for the parts of an object");
        continue;
      }
      read_texts(*node.as_table(), fmt::format("{}.{}", name, key.str()), {},
                 to[std::string(key.str())]);
    }
  }

  /// A flag of config.json as JSON; "null" is no text there.
  static std::string flag_of(const toml::node& node) {
    std::string json = json_of(node);
    return json == R"("null")" ? "null" : json;
  }

  void read_variants(DecoderTraits& traits) {
    DecoderVariants& variants = traits.variants;
    const toml::table* const table = section("forms");
    if (table != nullptr) {
      check_names(*table, "forms.", {"doc", "absent"});
      set(*table, "doc", "forms.", variants.doc);
      const toml::node* const absent = table->get("absent");
      if (absent == nullptr || !absent->is_table() || variants.doc.empty()) {
        problem(*table, "forms: needs `doc`, and `absent` with the flags of config.json");
        return;
      }
      for (const auto& [key, node] : *absent->as_table()) {
        variants.absent[std::string(key.str())] = flag_of(node);
      }
    }
    each("form", [&](const toml::table& form) {
      if (std::optional<DecoderVariant> variant = read_variant(form, variants.absent)) {
        variants.all.push_back(std::move(*variant));
      }
    });
    if (variants.all.empty() != variants.absent.empty()) {
      problems_.push_back(fmt::format("{}: [forms] goes with at least one [[form]]", file_));
    }
  }

  std::optional<DecoderVariant> read_variant(const toml::table& table,
                                             const std::map<std::string, std::string>& absent) {
    check_names(table, "form.", {"name", "flags", "key_heads", "decoder", "modules"});
    DecoderVariant variant;
    set(table, "name", "form.", variant.name);
    const toml::node* const flags = table.get("flags");
    if (variant.name.empty() || flags == nullptr || !flags->is_table()) {
      problem(table, "form: needs `name` and `flags`");
      return std::nullopt;
    }
    for (const auto& [key, node] : *flags->as_table()) {
      const std::string name(key.str());
      if (!absent.contains(name)) {
        problem(node, fmt::format("form.flags: forms.absent has no '{}'", shown(name)));
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
      read_members(*decoder->as_table(), "form.decoder.", variant.members);
    }
    if (const toml::node* const modules = table.get("modules");
        modules != nullptr && modules->is_table()) {
      read_texts(*modules->as_table(), "form.modules", decoder_modules(), variant.modules);
    }
    return variant;
  }

  void read_key_heads(const toml::table& table, DecoderVariant& variant) {
    static const std::map<std::string, KeyHeads> known = {
        {"counted", KeyHeads::counted}, {"one", KeyHeads::one}, {"all", KeyHeads::all}};
    if (const auto word = take<std::string>(table, "key_heads", "form.")) {
      const auto found = known.find(*word);
      if (found == known.end()) {
        problem(table, fmt::format("form.key_heads: there is no '{}' (there are counted, one, all)",
                                   shown(*word)));
      } else {
        variant.key_heads = found->second;
      }
    }
  }

  void read_further(DecoderTraits& traits) {
    if (const toml::table* const table = section("further_tokens")) {
      check_names(*table, "further_tokens.", {"config", "after_layers", "tensors", "copies"});
      set(*table, "config", "further_tokens.", traits.further.keys);
      set(*table, "after_layers", "further_tokens.", traits.further.after_layers);
      set(*table, "tensors", "further_tokens.", traits.further.tensors);
      if (const toml::node* const copies = table->get("copies")) {
        if (copies->is_table()) {
          read_texts(*copies->as_table(), "further_tokens.copies", {}, traits.further.copies);
        } else {
          problem(*copies, "further_tokens.copies: expected names of tensors and parameters");
        }
      }
    }
  }

  /// Whether a value, or each of a list, is true or false, a finite number or a text.
  static bool is_plain(const toml::node& node) {
    if (const toml::array* const list = node.as_array()) {
      return list->size() <= longest_list && std::ranges::all_of(*list, [](const toml::node& one) {
               return !one.is_array() && is_plain(one);
             });
    }
    const auto number = node.value_exact<double>();
    return node.is_boolean() || node.is_integer() || node.is_string() ||
           (number && std::isfinite(*number));
  }

  /// Values as JSON; "null" is no text.
  void read_values(const toml::table& table, const std::string& name,
                   std::map<std::string, std::string>& to) {
    if (const toml::table* const values = part(table, name, "gguf.")) {
      for (const auto& [key, node] : *values) {
        if (!is_plain(node)) {
          problem(node,
                  fmt::format("gguf.{}.{}: expected true or false, a number, a text or a list "
                              "of these",
                              name, key.str()));
        }
        to[std::string(key.str())] = flag_of(node);
      }
    }
  }
  /// A table in a table; null: it is not there.
  const toml::table* part(const toml::table& table, const std::string& name,
                          const std::string& where) {
    const toml::node* const node = table.get(name);
    if (node != nullptr && !node->is_table()) {
      problem(*node, fmt::format("{}{}: expected a table", where, name));
    }
    return node == nullptr ? nullptr : node->as_table();
  }

  void read_gguf(DecoderTraits& traits) {
    const toml::table* const table = section("gguf");
    if (table == nullptr) {
      return;
    }
    check_names(
        *table, "gguf.",
        {"architecture", "when",          "needs",          "keys",         "also",
         "fields",       "config",        "present",        "modules",      "fused",
         "rope_theta",   "pairs",         "norm_offset",    "layer_types",  "scores_by_width",
         "windows_with", "split_latents", "llama3_factors", "long_factors", "only_written"});
    GgufForm& form = traits.gguf.form;
    required(*table, "architecture", form.architecture);
    set(*table, "needs", "gguf.", form.needs);
    read_values(*table, "when", form.when);
    read_values(*table, "fields", form.fields);
    read_values(*table, "config", form.config);
    std::vector<std::string> modules = decoder_modules();
    modules.insert(modules.end(), {"mlp.gate", "mlp.shared_expert_gate"});
    const std::vector<std::string> any;
    for (const auto& [name, known, to] : {std::tuple{"keys", &any, &form.keys},
                                          {"also", &any, &form.also},
                                          {"present", &any, &form.present},
                                          {"modules", &modules, &traits.gguf.modules}}) {
      if (const toml::table* const texts = part(*table, name, "gguf.")) {
        read_texts(*texts, std::string("gguf.") + name, *known, *to);
      }
    }
    each(*table, "fused", "gguf.",
         [&](const toml::table& one) { read_fused(one, "gguf.", traits.gguf.fused); });
    set(*table, "rope_theta", "gguf.", form.rope_theta);
    set(*table, "pairs", "gguf.", form.pairs);
    set(*table, "norm_offset", "gguf.", form.norm_offset);
    set(*table, "layer_types", "gguf.", form.layer_types);
    set(*table, "scores_by_width", "gguf.", form.scores_by_width);
    set(*table, "windows_with", "gguf.", form.windows_with);
    set(*table, "llama3_factors", "gguf.", form.llama3_factors);
    set(*table, "long_factors", "gguf.", form.long_factors);
    set(*table, "only_written", "gguf.", form.only_written);
    set(*table, "split_latents", "gguf.", form.split_latents);
  }

  void read_experts(DecoderTraits& traits) {
    const toml::table* const table = section("experts");
    if (table == nullptr) {
      return;
    }
    HubExperts experts = traits.experts.value_or(HubExperts());
    const std::pair<const char*, std::string*> names[] = {{"router", &experts.router},
                                                          {"gate", &experts.gate},
                                                          {"up", &experts.up},
                                                          {"down", &experts.down},
                                                          {"bias", &experts.bias},
                                                          {"shared", &experts.shared},
                                                          {"shared_gate", &experts.shared_gate},
                                                          {"gate_up", &experts.gate_up},
                                                          {"all_down", &experts.all_down},
                                                          {"logit_bias", &experts.logit_bias},
                                                          {"gate_up_bias", &experts.gate_up_bias},
                                                          {"down_bias", &experts.down_bias}};
    std::vector<std::string> known = {"bias_row"};
    set(*table, "bias_row", "experts.", experts.bias_row);
    for (const auto& [name, to] : names) {
      known.emplace_back(name);
      set(*table, name, "experts.", *to);
    }
    for (const auto& [name, to] : {std::pair{"transposed", &experts.transposed},
                                   {"alternating", &experts.alternating},
                                   {"packed", &experts.packed}}) {
      known.emplace_back(name);
      set(*table, name, "experts.", *to);
    }
    check_names(*table, "experts.", known);
    traits.experts = experts;
  }

  std::string file_;
  toml::table root_;
  std::vector<std::string> problems_;
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

FamilyFile read_family_file(const std::string& file, std::string_view text) {
  return FamilyReader(file, text).read();
}

}  // namespace tessera::models
