// [gguf]: what GGUF files have of a family's models.
module;
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>
module tessera.models;

import tessera.base;
import :gguf_form;
import :decoder_values;
import :decoder_family;
import :family_tables;

namespace tessera::models {
namespace {

constexpr NamedField<GgufForm> gguf_fields[] = {
    named_field<&GgufForm::needs>("needs"),
    named_field<&GgufForm::rope_theta>("rope_theta"),
    named_field<&GgufForm::pairs>("pairs"),
    named_field<&GgufForm::norm_offset>("norm_offset"),
    named_field<&GgufForm::layer_types>("layer_types"),
    named_field<&GgufForm::scores_by_width>("scores_by_width"),
    named_field<&GgufForm::windows_with>("windows_with"),
    named_field<&GgufForm::split_latents>("split_latents"),
    named_field<&GgufForm::llama3_factors>("llama3_factors"),
    named_field<&GgufForm::long_factors>("long_factors"),
    named_field<&GgufForm::only_written>("only_written")};

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

}  // namespace

void read_family_gguf(FamilyTables& in, DecoderTraits& traits) {
  const toml::table* const table = in.section("gguf");
  if (table == nullptr) {
    return;
  }
  GgufForm& form = traits.gguf.form;
  in.set_fields(
      *table, "gguf.", gguf_fields, form,
      {"architecture", "when", "keys", "also", "fields", "config", "present", "modules", "fused"});
  in.required(*table, "architecture", form.architecture);
  read_values(in, *table, "when", form.when);
  read_values(in, *table, "fields", form.fields);
  read_values(in, *table, "config", form.config);
  std::vector<std::string> modules = decoder_modules();
  modules.insert(modules.end(), {"mlp.gate", "mlp.shared_expert_gate"});
  const std::vector<std::string> any;
  for (const auto& [name, known, to] : {std::tuple{"keys", &any, &form.keys},
                                        {"also", &any, &form.also},
                                        {"present", &any, &form.present},
                                        {"modules", &modules, &traits.gguf.modules}}) {
    if (const toml::table* const texts = in.part(*table, name, "gguf.")) {
      in.read_texts(*texts, std::string("gguf.") + name, *known, *to);
    }
  }
  in.each(*table, "fused", "gguf.",
          [&](const toml::table& one) { read_fused(in, one, "gguf.", traits.gguf.fused); });
}

}  // namespace tessera::models
