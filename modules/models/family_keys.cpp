// [[key]]: properties in which the models of a family differ.
module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_values;
import :decoder_family;
import :family_tables;
import :hub_forms;

namespace tessera::models {
namespace {

constexpr NamedField<DecoderProperty> key_fields[] = {named_field<&DecoderProperty::key>("name"),
                                                      named_field<&DecoderProperty::hub>("config"),
                                                      named_field<&DecoderProperty::doc>("doc")};

class KeyReader {
 public:
  explicit KeyReader(FamilyTables& in) : in_(in) {}

  void read(DecoderTraits& traits) {
    std::vector<const toml::table*> keys;
    in_.each("key", [&](const toml::table& table) {
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

 private:
  /// What `replaces` names is a key of the family: every so many-th layer.
  void check_replaced(const toml::table& table, const DecoderTraits& traits) {
    const toml::node* const node = table.get("replaces");
    const auto name = node == nullptr ? std::nullopt : node->value<std::string>();
    const auto found =
        std::ranges::find(traits.properties, name.value_or(""), &DecoderProperty::key);
    if (name && !name->empty() &&
        (found == traits.properties.end() ||
         !std::holds_alternative<std::int64_t>(found->initial))) {
      in_.problem(*node,
                  fmt::format("key.replaces: the family has no key '{}' that is a whole number",
                              shown(*name)));
    }
  }

  std::optional<DecoderProperty> read_key(const toml::table& table) {
    DecoderProperty property;
    in_.set_fields(table, "key.", key_fields, property,
                   {"also",   "sets",    "initial",  "absent", "low",   "high",  "above",
                    "whole",  "counts",  "zeros",    "others", "marks", "words", "replaces",
                    "layers", "indices", "interval", "entry",  "none",  "begin", "last"});
    std::vector<std::string> names;
    in_.set(table, "sets", "key.", names);
    if (names.empty()) {
      names.push_back(property.key);
    }
    for (const std::string& name : names) {
      if (const NamedDecoderMember* const found = in_.member(table, name)) {
        property.members.push_back(found->member);
      }
    }
    for (const auto& [text, missing] : {std::pair{"name", property.key.empty()},
                                        {"config", property.hub.empty()},
                                        {"doc", property.doc.empty()},
                                        {"initial", !table.contains("initial")}}) {
      if (missing) {
        in_.problem(table, fmt::format("key: {} is missing", text));
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
        in_.problem(node, "key.words: expected pairs of texts, [\"of config.json\", \"here\"]");
        return words;
      }
      if (letters && own->size() != 1) {
        in_.problem(node,
                    "key.layers: expected pairs of a text and the letter of a kind of layers");
      }
      if (in_.is_word(node, "key.words", property.members[0], *own)) {
        words.emplace_back(*hub, *own);
      }
    }
    return words;
  }

  std::shared_ptr<const HubForm> form_of_layers(const toml::table& table,
                                                const DecoderProperty& property) {
    std::string replaces;
    in_.set(table, "replaces", "key.", replaces);
    if (in_.take<bool>(table, "zeros", "key.").value_or(false)) {
      return std::make_shared<ZerosForm>(replaces);
    }
    if (in_.take<bool>(table, "others", "key.").value_or(false)) {
      return std::make_shared<OthersForm>(replaces);
    }
    std::vector<std::string> marks;
    in_.set(table, "marks", "key.", marks);
    if (marks.empty() && !replaces.empty()) {
      in_.problem(table, "key: `replaces` goes with `zeros`, `others` and `marks`");
    }
    if (marks.empty()) {
      if (table.contains("last")) {
        in_.problem(table, "key: `last` goes with `marks`");
      }
      return nullptr;
    }
    if (marks.size() != 2) {
      in_.problem(table,
                  "key.marks: expected two texts, that of the property's layers and that of all "
                  "others");
      return nullptr;
    }
    nn::DecoderShape any;
    const bool has_last = in_.take<bool>(table, "last", "key.").value_or(false);
    const auto* const at =
        std::get_if<DecoderField<std::vector<std::int64_t>>>(&property.members.front());
    if (at != nullptr && &(*at)(any) == &any.global_layers) {
      return std::make_shared<LayerTypesForm>(marks[0], marks[1], replaces, has_last);
    }
    if (has_last) {
      in_.problem(table, "key.last: goes with the property global_layers");
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
      in_.set(table, "also", "key.", options.also);
      in_.set(table, "indices", "key.", options.indices);
      in_.set(table, "interval", "key.", options.interval);
      in_.set(table, "begin", "key.", options.begin);
      return std::make_shared<PatternForm>(std::move(options));
    }
    if (const toml::node* const words = table.get("words")) {
      return std::make_shared<WordForm>(read_words(*words, property, false));
    }
    if (const auto entry = in_.take<std::int64_t>(table, "entry", "key.")) {
      return std::make_shared<PairForm>(*entry);
    }
    if (in_.take<bool>(table, "whole", "key.").value_or(false)) {
      return std::make_shared<NumberForm>(true);
    }
    IntegerForm::Options options;
    in_.set(table, "also", "key.", options.also);
    in_.set(table, "none", "key.", options.none);
    in_.set(table, "counts", "key.", options.counts);
    const bool is_plain = options.also.empty() && options.none.empty() && !options.counts;
    return is_plain ? nullptr : std::make_shared<IntegerForm>(std::move(options));
  }

  bool read_form(const toml::table& table, DecoderProperty& property) {
    property.form = named_form(table, property);
    const bool is_text = std::holds_alternative<std::string>(property.initial);
    if (property.form ? property.form->fits(property.initial) : !is_text) {
      return true;
    }
    in_.problem(table,
                "key: `words` are for properties that are texts, `zeros`, `others` and `marks` for "
                "lists, `counts` for integers");
    return false;
  }

  bool read_key_values(const toml::table& table, DecoderProperty& property) {
    const ModelValue type = empty_value(property.members[0]);
    for (const DecoderMember& member : property.members) {
      if (empty_value(member).index() != type.index()) {
        in_.problem(table, "key.sets: the properties have different types");
        return false;
      }
    }
    const auto initial = in_.read_value(*table.get("initial"), "key.initial", type);
    const toml::node* const absent = table.get("absent");
    const auto missing = absent == nullptr ? initial : in_.read_value(*absent, "key.absent", type);
    if (!initial || !missing || !in_.is_word(table, "key.initial", property.members[0], *initial) ||
        !in_.is_word(table, "key.absent", property.members[0], *missing)) {
      return false;
    }
    property.initial = *initial;
    property.absent = *missing;
    property.range.low = in_.take<double>(table, "low", "key.");
    property.range.high = in_.take<double>(table, "high", "key.");
    if (const auto above = in_.take<double>(table, "above", "key.")) {
      property.range.low = above;
      property.range.low_open = true;
    }
    return true;
  }

  FamilyTables& in_;
};

}  // namespace

void read_family_keys(FamilyTables& in, DecoderTraits& traits) { KeyReader(in).read(traits); }

}  // namespace tessera::models
