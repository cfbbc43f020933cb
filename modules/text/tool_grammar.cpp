module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "argument_texts.hpp"
module tessera.text;

import tessera.base;
import tessera.grammar;

namespace tessera::text {
namespace {

using namespace grammar;  // NOLINT(google-build-using-namespace)
using Json = nlohmann::ordered_json;

/// Texts without the mark, and the mark after them. Source: the automaton of Knuth, Morris and
/// Pratt: a state for each length of the mark's beginning that the text ends with.
Expression text_before(Grammar& all, const std::string& mark) {
  const auto longest_end = [&](const std::string& text) {
    std::size_t length = std::min(text.size(), mark.size());
    while (!text.ends_with(std::string_view(mark).substr(0, length))) {
      --length;
    }
    return length;
  };
  std::vector<std::size_t> states;
  for (std::size_t i = 0; i < mark.size(); ++i) {
    states.push_back(all.add());
  }
  const std::set<char> own(mark.begin(), mark.end());
  std::vector<CharacterRange> others = {{0, 8}, {0xB, 0xC}, {0xE, 0x1F}};  // besides ends of lines
  for (const char c : own) {
    const auto code = static_cast<char32_t>(static_cast<unsigned char>(c));
    others.push_back({code, code});
  }
  others = all_but(std::move(others));
  for (std::size_t i = 0; i < mark.size(); ++i) {
    std::vector<Expression> next = {sequence({characters(others), rule(states[0])})};
    for (const char c : own) {
      const std::size_t length = longest_end(mark.substr(0, i) + c);
      next.push_back(length == mark.size() ? bytes({c})
                                           : sequence({bytes({c}), rule(states[length])}));
    }
    all.rules[states[i]] = choice(std::move(next));
  }
  return rule(states[0]);
}

/// The texts of one call of a tool, in each syntax.
struct CallGrammar {
  Grammar& all;
  std::size_t blank;
  const Tool& tool;
  std::string place;  // of the tool's schema

  Expression operator()(const JsonCalls& form) const;
  Expression operator()(const NamedCalls& form) const;
  Expression operator()(const TaggedCalls& form) const;

 private:
  Expression arguments() const {
    return tool.parameters.empty() ? add_json_object(all)
                                   : add_json_schema(all, tool.parameters, place);
  }
  Expression value(const TaggedCalls& form, const Json& schema, const Json& root,
                   const std::string& path) const;
  Expression argument(const TaggedCalls& form, Expression name, Expression value) const;
  std::vector<Expression> known_arguments(const TaggedCalls& form) const;
};

Expression CallGrammar::operator()(const JsonCalls& form) const {
  const std::string name = json_text(nlohmann::json(tool.name));
  const std::string begin =
      form.name.empty() ? fmt::format("{{{}: ", name)
                        : fmt::format("{{\"{}\": {}, \"{}\": ", form.name, name, form.arguments);
  return sequence({bytes(begin), arguments(), bytes("}")});
}

Expression CallGrammar::operator()(const NamedCalls& form) const {
  return sequence({bytes(form.call + tool.name + form.between), rule(blank), arguments(),
                   rule(blank), bytes(form.call_end)});
}

Expression CallGrammar::argument(const TaggedCalls& form, Expression name, Expression value) const {
  return sequence({bytes(form.key), std::move(name), bytes(form.key_end),
                   form.value.empty() ? bytes("") : sequence({rule(blank), bytes(form.value)}),
                   std::move(value), rule(blank)});
}

/// What follows the mark of a value, with the mark of its end.
Expression CallGrammar::value(const TaggedCalls& form, const Json& schema, const Json& root,
                              const std::string& path) const {
  if (!takes_text(nlohmann::json(schema))) {
    Json own = schema;
    for (const char* const name : {"$defs", "definitions"}) {
      if (root.contains(name) && own.is_object()) {
        own[name] = root[name];
      }
    }
    return sequence({rule(blank), add_json_schema(all, json_text(own), path), rule(blank),
                     bytes(form.value_end)});
  }
  for (const char* const name :
       {"pattern", "format", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "not", "$ref"}) {
    if (schema.contains(name)) {
      fail_input({.thing = path + "/" + name,
                  .wrong = "is not supported where the model writes arguments as texts"});
    }
  }
  const Json known = schema.contains("const") ? Json::array({schema["const"]})
                                              : schema.value("enum", Json::array());
  if (known.empty()) {
    return text_before(all, form.value_end);
  }
  std::vector<Expression> texts;
  for (const Json& one : known) {
    const std::string text = one.is_string() ? one.get<std::string>() : json_text(one);
    texts.push_back(bytes(text + form.value_end));
    texts.push_back(bytes("\n" + text + "\n" + form.value_end));
  }
  return choice(std::move(texts));
}

/// Those of the tool's schema, in its order.
std::vector<Expression> CallGrammar::known_arguments(const TaggedCalls& form) const {
  Grammar whole;
  add_json_schema(whole, tool.parameters, place);  // what is wrong with it
  const Json schema = parse_ordered_json(tool.parameters);
  const std::set<std::string> read = {"type",   "properties",  "required", "additionalProperties",
                                      "title",  "description", "$defs",    "definitions",
                                      "$schema"};
  for (const auto& [name, own] : schema.items()) {
    if (!read.contains(name)) {
      fail_input({.thing = place + "/" + name,
                  .wrong = "is not supported where the model writes arguments one by one"});
    }
  }
  std::vector<Expression> known;
  const Json required = schema.value("required", Json::array());
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, own] : properties.items()) {
    Expression one =
        argument(form, bytes(name), value(form, own, schema, place + "/properties/" + name));
    const bool needed = std::ranges::find(required, Json(name)) != required.end();
    known.push_back(needed ? std::move(one) : optional(std::move(one)));
  }
  return known;
}

Expression CallGrammar::operator()(const TaggedCalls& form) const {
  const Expression name = repeat(characters({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}}), 1);
  Expression arguments = tool.parameters.empty()
                             ? repeat(argument(form, name, text_before(all, form.value_end)), 0)
                             : sequence(known_arguments(form));
  return sequence({bytes(form.call + tool.name + form.name_end), rule(blank), std::move(arguments),
                   bytes(form.call_end)});
}

bool in_list(const ToolCallForm& form) {
  const auto* const json = std::get_if<JsonCalls>(&form.calls);
  return json != nullptr && json->in_list;
}

}  // namespace

Grammar tool_call_grammar(const ToolCallForm& form, std::span<const Tool> tools, bool several,
                          const std::string& place) {
  Grammar all;
  const std::size_t root = all.add();
  const std::size_t blank = all.add(repeat(characters({{' ', ' '}, {'\n', '\n'}}), 0, 2));
  std::vector<Expression> calls;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    calls.push_back(std::visit(
        CallGrammar{all, blank, tools[i], fmt::format("{}.{}.function.parameters", place, i)},
        form.calls));
  }
  const Expression one = rule(all.add(choice(std::move(calls))));
  const bool listed = in_list(form);
  const Expression between = listed ? bytes(", ") : rule(blank);
  const Expression more = several ? repeat(sequence({between, one}), 0) : bytes("");
  // In a list, and in sections of several calls, they follow each other; else sections do.
  const bool within = listed || form.several;
  const Expression inner = within ? sequence({one, more}) : one;
  const Expression section = sequence(
      {bytes(form.begin), rule(blank), bytes(listed ? "[" : ""), inner, bytes(listed ? "]" : ""),
       form.end.empty() ? bytes("") : rule(blank), bytes(form.end)});
  all.rules[root] = several && !within && !form.begin.empty()
                        ? sequence({section, repeat(sequence({rule(blank), section}), 0)})
                        : section;
  return all;
}

}  // namespace tessera::text
