module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
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

/// The texts of one call of a tool, in each syntax.
struct CallGrammar {
  Grammar& all;
  std::size_t blank;
  const Tool& tool;
  std::string place;  // of the tool's schema

  Expression operator()(const JsonCalls& form) const;
  Expression operator()(const NamedCalls& form) const;
  Expression operator()(const TaggedCalls& form) const;
  Expression operator()(const ChannelCalls& form) const;

 private:
  Expression arguments(const JsonNotation& notation = {}) const {
    return tool.parameters.empty() ? add_json_object(all, notation)
                                   : add_json_schema(all, tool.parameters, place, notation);
  }
  Expression value(const TaggedCalls& form, const JsonSchema& whole, const Json& schema,
                   const std::string& part) const;
  Expression argument(const TaggedCalls& form, Expression name, bool as_json,
                      Expression value) const;
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
  // A number of the call, as templates write it.
  const Expression number =
      form.name_end.empty()
          ? bytes("")
          : optional(sequence({bytes(form.name_end),
                               repeat(characters({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}}), 1, 20)}));
  return sequence({bytes(form.call + tool.name), number, bytes(form.between), rule(blank),
                   arguments({.quote = form.quote}), rule(blank), bytes(form.call_end)});
}

/// The whole answer: thoughts, and the call.
Expression CallGrammar::operator()(const ChannelCalls& form) const {
  const std::string to = form.recipient + tool.name;
  const Expression header = choice(
      {bytes(form.channel + "commentary " + to), bytes(" " + to + form.channel + "commentary")});
  const Expression thoughts = sequence({bytes(form.channel + form.thoughts + form.content),
                                        text_before(all, form.end), bytes(form.message)});
  return sequence({optional(thoughts), header, bytes(" "), optional(bytes(form.json)),
                   bytes("json"), bytes(form.content), arguments()});
}

Expression CallGrammar::argument(const TaggedCalls& form, Expression name, bool as_json,
                                 Expression value) const {
  return sequence({bytes(form.key), std::move(name),
                   bytes(as_json ? form.json_key_end : form.key_end),
                   form.value.empty() ? bytes("") : sequence({rule(blank), bytes(form.value)}),
                   std::move(value), rule(blank)});
}

/// The mark before a value, the value, and the mark after it.
Expression CallGrammar::value(const TaggedCalls& form, const JsonSchema& whole, const Json& schema,
                              const std::string& part) const {
  if (!takes_text(nlohmann::json(schema))) {
    return sequence({rule(blank), whole.add(all, part), rule(blank), bytes(form.value_end)});
  }
  static const std::set<std::string> read = {"type",        "enum",      "const",    "title",
                                             "description", "default",   "examples", "deprecated",
                                             "readOnly",    "writeOnly", "$comment"};
  for (const auto& [name, own] : schema.items()) {
    if (!read.contains(name)) {
      fail_input({.thing = place + part + "/" + name,
                  .wrong = "is not supported where the model writes arguments as texts"});
    }
  }
  const Json known = schema.contains("const") ? Json::array({schema["const"]})
                                              : schema.value("enum", Json::array());
  if (!known.is_array()) {
    fail_input({.thing = place + part + "/enum", .wrong = "must be a list"});
  }
  if (known.empty()) {
    return text_before(all, form.value_end);
  }
  std::vector<Expression> texts;
  for (const Json& one : known) {
    const std::string text = one.is_string() ? one.get<std::string>() : json_text(one);
    if (text.find(form.value_end) != std::string::npos) {
      fail_input(
          {.thing = place + part + "/enum",
           .wrong = fmt::format("a text has the mark '{}', which ends texts", form.value_end)});
    }
    texts.push_back(bytes(text + form.value_end));
    if (form.json_key_end.empty()) {
      texts.push_back(bytes("\n" + text + "\n" + form.value_end));
    }
  }
  return choice(std::move(texts));
}

/// Those of the tool's schema, in its order.
std::vector<Expression> CallGrammar::known_arguments(const TaggedCalls& form) const {
  const JsonSchema whole(tool.parameters, place);
  const Json schema = parse_ordered_json(tool.parameters);
  static const std::set<std::string> read = {
      "type",  "properties",  "required", "additionalProperties", "title", "description",
      "$defs", "definitions", "$schema"};
  for (const auto& [name, own] : schema.items()) {
    if (!read.contains(name)) {
      fail_input({.thing = place + "/" + name,
                  .wrong = "is not supported where the model writes arguments one by one"});
    }
  }
  const Json required = schema.value("required", Json::array());
  const Json properties = schema.value("properties", Json::object());
  if (schema.value("type", Json("object")) != "object" || !properties.is_object() ||
      !required.is_array()) {
    fail_input({.thing = place,
                .wrong = "arguments must be an object, its properties too, and required a list"});
  }
  std::set<std::string> needed;
  for (const Json& name : required) {
    needed.insert(name.is_string() ? name.get<std::string>() : "");
  }
  constexpr std::size_t most = 1000;
  if (properties.size() > most) {
    fail_input({.thing = place + "/properties",
                .wrong = "a tool has too many arguments",
                .expected = fmt::format("at most {}", most),
                .got = fmt::format("{}", properties.size())});
  }
  std::vector<Expression> known;
  for (const auto& [name, own] : properties.items()) {
    if (name.find_first_of("<>\"\n") != std::string::npos) {
      fail_input({.thing = shown(place + "/properties/" + name, 200),
                  .wrong = "a name with '<', '>', '\"' or a line end cannot be told from marks"});
    }
    const std::string part =
        (nlohmann::json::json_pointer("/properties") / std::string(name)).to_string();
    const bool as_json = !form.json_key_end.empty() && !takes_text(nlohmann::json(own));
    Expression one = argument(form, bytes(name), as_json, value(form, whole, own, part));
    known.push_back(needed.erase(name) != 0 ? std::move(one) : optional(std::move(one)));
  }
  if (!needed.empty()) {
    fail_input({.thing = place + "/required",
                .wrong = fmt::format("properties has no '{}'", shown(*needed.begin(), 40))});
  }
  return known;
}

Expression CallGrammar::operator()(const TaggedCalls& form) const {
  const Expression name = repeat(characters({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}}), 1);
  Expression arguments =
      tool.parameters.empty()
          ? repeat(argument(form, name, false, text_before(all, form.value_end)), 0)
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
