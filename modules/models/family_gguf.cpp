// [gguf]: what GGUF files have of a family's models.
module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <tessera/shown.hpp>
#include <tuple>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import :gguf_form;
import :family;
import :decoder_values;
import :decoder_family;
import :family_tables;

namespace tessera::models {
namespace {

constexpr NamedField<GgufForm> gguf_fields[] = {
    named_field<&GgufForm::needs>("needs"),
    named_field<&GgufForm::same_as>("same_as"),
    named_field<&GgufForm::rope_theta>("rope_theta"),
    named_field<&GgufForm::pairs>("pairs"),
    named_field<&GgufForm::norm_offset>("norm_offset"),
    named_field<&GgufForm::layer_types>("layer_types"),
    named_field<&GgufForm::scores_by_width>("scores_by_width"),
    named_field<&GgufForm::windows_with>("windows_with"),
    named_field<&GgufForm::split_latents>("split_latents"),
    named_field<&GgufForm::log_share>("log_share"),
    named_field<&GgufForm::rope_sections>("rope_sections"),
    named_field<&GgufForm::wide_shared>("wide_shared"),
    named_field<&GgufForm::llama3_factors>("llama3_factors"),
    named_field<&GgufForm::long_factors>("long_factors"),
    named_field<&GgufForm::only_written>("only_written")};

constexpr NamedField<GgufLayers> layers_fields[] = {
    named_field<&GgufLayers::key>("key"), named_field<&GgufLayers::numbers>("numbers"),
    named_field<&GgufLayers::interval>("interval"),
    named_field<&GgufLayers::usual_interval>("usual_interval")};
constexpr NamedField<GgufLayerKind> kind_fields[] = {
    named_field<&GgufLayerKind::word>("word"), named_field<&GgufLayerKind::field>("field"),
    named_field<&GgufLayerKind::key>("key"),
    named_field<&GgufLayerKind::architecture>("architecture")};

constexpr std::pair<const char*, GgufTensorForm> tensor_forms[] = {
    {"negative_exp", GgufTensorForm::negative_exp},
    {"column", GgufTensorForm::column},
    {"without_middle", GgufTensorForm::without_middle},
    {"by_key_heads", GgufTensorForm::by_key_heads},
    {"heads_in_turns", GgufTensorForm::heads_in_turns},
    {"columns_in_turns", GgufTensorForm::columns_in_turns}};

/// Whether a value, or each of a list, is true or false, a finite number or a text.
bool is_plain(const toml::node& node) {
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
void read_values(FamilyTables& in, const toml::table& table, const std::string& name,
                 std::map<std::string, std::string>& to) {
  if (const toml::table* const values = in.part(table, name, "gguf.")) {
    for (const auto& [key, node] : *values) {
      if (!is_plain(node)) {
        in.problem(node,
                   fmt::format("gguf.{}.{}: expected true or false, a number, a text or a list "
                               "of these",
                               name, key.str()));
      }
      to[std::string(key.str())] = flag_of(node);
    }
  }
}

/// "recurrent.steps.A_log" = ["negative_exp", "column"]
void read_forms(FamilyTables& in, const toml::table& table, GgufForm& form) {
  const toml::table* const forms = in.part(table, "forms", "gguf.");
  if (forms == nullptr) {
    return;
  }
  for (const auto& [key, node] : *forms) {
    const std::string name(key.str());
    std::vector<std::string> words;
    in.set(*forms, name, "gguf.forms.", words);
    std::vector<GgufTensorForm>& to = form.forms[name];
    to.clear();
    for (const std::string& word : words) {
      const auto* const found = std::ranges::find(
          tensor_forms, word, [](const auto& one) { return std::string(one.first); });
      if (found == std::end(tensor_forms)) {
        std::vector<std::string> known;
        for (const auto& [known_word, value] : tensor_forms) {
          known.emplace_back(known_word);
        }
        in.problem(node, fmt::format("gguf.forms.{}: '{}' is not a form of tensors (expected {})",
                                     shown(name), shown(word), join_words(known)));
      } else {
        to.push_back(found->second);
      }
    }
  }
}

/// key = { field = "...", values = [[128, false]], otherwise = true }
void read_choice(FamilyTables& in, const toml::table& table, const std::string& where,
                 GgufChoice& to) {
  in.check_names(table, where, {"field", "values", "otherwise"});
  in.set(table, "field", where, to.field);
  const toml::node* const otherwise = table.get("otherwise");
  const toml::array* const values = table["values"].as_array();
  bool fits = !to.field.empty() && otherwise != nullptr && is_plain(*otherwise) &&
              values != nullptr && values->size() <= longest_list;
  if (fits) {
    to.otherwise = flag_of(*otherwise);
    for (const toml::node& pair : *values) {
      const toml::array* const both = pair.as_array();
      fits = fits && both != nullptr && both->size() == 2 && is_plain((*both)[0]) &&
             is_plain((*both)[1]);
      if (fits) {
        to.values.emplace_back(flag_of((*both)[0]), flag_of((*both)[1]));
      }
    }
  }
  if (!fits) {
    in.problem(table, where.substr(0, where.size() - 1) +
                          ": expected a `field`, `values` (pairs of a value of the field and one "
                          "of the key) and the value `otherwise`");
  }
}

/// name = ["a", "b"]
void read_pairs(FamilyTables& in, const toml::table& table, const std::string& name,
                std::map<std::string, std::pair<std::string, std::string>>& to) {
  const toml::table* const pairs = in.part(table, name, "gguf.");
  if (pairs == nullptr) {
    return;
  }
  for (const auto& [key, node] : *pairs) {
    std::vector<std::string> both;
    in.set(*pairs, std::string(key.str()), fmt::format("gguf.{}.", name), both);
    if (both.size() == 2) {
      to[std::string(key.str())] = {both[0], both[1]};
    } else {
      in.problem(node, fmt::format("gguf.{}.{}: expected two texts", name, key.str()));
    }
  }
}

void read_layers(FamilyTables& in, const toml::table& table, GgufLayers& to) {
  in.set_fields(table, "gguf.layers.", layers_fields, to, {"kind"});
  in.each(table, "kind", "gguf.layers.", [&](const toml::table& one) {
    in.set_fields(one, "gguf.layers.kind.", kind_fields, to.kinds.emplace_back());
  });
  const auto without_field = [](const GgufLayerKind& kind) { return kind.field.empty(); };
  const bool fits = !to.key.empty() && to.kinds.size() >= 2 &&
                    std::ranges::count_if(to.kinds, without_field) == 1 &&
                    without_field(to.kinds.back()) && (!to.numbers || to.kinds.size() == 2);
  if (!fits) {
    in.problem(
        table,
        "gguf.layers: expected a `key` and two or more kinds, all with a `field` but the last "
        "one (with `numbers`: two)");
  }
}

}  // namespace

void read_family_gguf(FamilyTables& in, DecoderTraits& traits) {
  const toml::table* const table = in.section("gguf");
  if (table == nullptr) {
    return;
  }
  GgufForm& form = traits.gguf.form;
  const std::vector<std::string> known_families = built_in_families();
  in.set_fields(*table, "gguf.", gguf_fields, form,
                {"architecture", "when", "keys", "also", "fields", "written", "config", "choices",
                 "every", "layers", "forms", "present", "lacking", "windowed", "numbers", "modules",
                 "form_modules", "fused"});
  if (form.same_as.empty()) {
    in.required(*table, "architecture", form.architecture);
  } else if (table->contains("architecture")) {
    in.problem(*table, "gguf: `architecture` does not go with `same_as`");
  } else if (std::ranges::find(known_families, form.same_as) == known_families.end()) {
    in.problem(*table, fmt::format("gguf.same_as: there is no built-in family '{}' (there are {})",
                                   shown(form.same_as), join_words(known_families)));
  }
  read_values(in, *table, "when", form.when);
  read_values(in, *table, "fields", form.fields);
  read_values(in, *table, "written", form.written);
  read_values(in, *table, "config", form.config);
  read_forms(in, *table, form);
  if (const toml::table* const choices = in.part(*table, "choices", "gguf.")) {
    for (const auto& [key, node] : *choices) {
      const std::string name(key.str());
      if (const toml::table* const one = in.part(*choices, name, "gguf.choices.")) {
        read_choice(in, *one, fmt::format("gguf.choices.{}.", name), form.choices[name]);
      }
    }
  }
  read_pairs(in, *table, "lacking", form.lacking);
  read_pairs(in, *table, "windowed", form.windowed);
  if (const toml::table* const forms = in.part(*table, "form_modules", "gguf.")) {
    for (const auto& [key, node] : *forms) {
      const std::string name(key.str());
      if (const toml::table* const names = in.part(*forms, name, "gguf.form_modules.")) {
        in.read_texts(*names, "gguf.form_modules." + name, decoder_modules(),
                      traits.gguf.form_modules[name]);
      }
    }
  }
  if (const toml::table* const layers = in.part(*table, "layers", "gguf.")) {
    read_layers(in, *layers, form.layers);
  }
  std::vector<std::string> modules = decoder_modules();
  modules.insert(modules.end(), {"mlp.gate", "mlp.shared_expert_gate"});
  const std::vector<std::string> any;
  for (const auto& [name, known, to] : {std::tuple{"keys", &any, &form.keys},
                                        {"also", &any, &form.also},
                                        {"every", &any, &form.every},
                                        {"present", &any, &form.present},
                                        {"numbers", &any, &form.numbers},
                                        {"modules", &modules, &traits.gguf.modules}}) {
    if (const toml::table* const texts = in.part(*table, name, "gguf.")) {
      in.read_texts(*texts, std::string("gguf.") + name, *known, *to);
    }
  }
  in.each(*table, "fused", "gguf.",
          [&](const toml::table& one) { read_fused(in, one, "gguf.", traits.gguf.fused); });
}

}  // namespace tessera::models
