module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/utf8.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "argument_texts.hpp"
module tessera.text;

import tessera.base;

namespace tessera::text {
namespace {

using Json = nlohmann::ordered_json;

/// What was found at the beginning of a text.
enum class CallMatch : std::uint8_t { call, incomplete, none };

/// Reads the calls of one syntax from the beginning of a text, and removes them from it.
struct CallReader {
  std::string_view& rest;
  const std::string& end;                                // of the section
  const std::map<std::string, nlohmann::json>& schemas;  // of arguments, by the tools' names
  bool whole;                                            // nothing follows the text
  std::vector<ToolCall>& calls;

  CallMatch operator()(const JsonCalls& form) const;
  CallMatch operator()(const NamedCalls& form) const;
  CallMatch operator()(const TaggedCalls& form) const;
  CallMatch operator()(const ChannelCalls& /*form*/) const { return CallMatch::none; }

 private:
  static constexpr std::size_t longest_name = 200;

  bool add(const JsonCalls& form, const Json& call) const;
  CallMatch take(const std::string& mark) const;
  CallMatch take_to(const std::string& mark, std::size_t longest, std::string_view& before) const;
  CallMatch take_name(const TaggedCalls& form, std::string_view& name) const;
  CallMatch take_argument(const TaggedCalls& form, const std::string& tool, Json& arguments) const;
  CallMatch not_yet(bool possible) const {
    return possible && !whole ? CallMatch::incomplete : CallMatch::none;
  }
};

bool CallReader::add(const JsonCalls& form, const Json& call) const {
  const bool keyed = form.name.empty();
  if (!call.is_object() ||
      (keyed ? call.size() != 1 : !call.contains(form.name) || !call[form.name].is_string())) {
    return false;
  }
  const Json arguments = keyed ? call.begin().value() : call.value(form.arguments, Json::object());
  if (!arguments.is_object() && (keyed || !arguments.is_string())) {
    return false;
  }
  calls.push_back(
      {.name = keyed ? call.begin().key() : call[form.name].get<std::string>(),
       .arguments = arguments.is_string() ? arguments.get<std::string>() : json_text(arguments)});
  return true;
}

CallMatch CallReader::operator()(const JsonCalls& form) const {
  if (!form.opening.empty()) {
    const auto opened = begins(rest, form.opening);
    if (!opened && !whole && !rest.empty()) {
      return CallMatch::incomplete;
    }
    rest.remove_prefix(opened.value_or(false) ? form.opening.size() : 0);
    skip_blanks(rest);
  }
  const bool opens = rest.starts_with(form.in_list ? '[' : '{');
  const auto length = opens ? value_length(rest) : std::nullopt;
  if (!length) {
    return opens || rest.empty() ? CallMatch::incomplete : CallMatch::none;
  }
  const auto value = read_json(rest.substr(0, *length));
  if (!value || value->is_array() != form.in_list) {
    return CallMatch::none;
  }
  for (const Json& call : form.in_list ? *value : Json::array({*value})) {
    if (!add(form, call)) {
      return CallMatch::none;
    }
  }
  rest.remove_prefix(*length);
  return CallMatch::call;
}

/// Removes a mark, with blanks before it. `incomplete`: the text ends within it.
CallMatch CallReader::take(const std::string& mark) const {
  std::string_view after = rest;
  skip_blanks(after);
  const auto there = begins(after, mark);
  if (!there.value_or(false)) {
    return not_yet(!there);
  }
  rest = after.substr(mark.size());
  return CallMatch::call;
}

/// Removes what is before a mark, and the mark.
CallMatch CallReader::take_to(const std::string& mark, std::size_t longest,
                              std::string_view& before) const {
  const std::size_t at = rest.find(mark);
  if (at == std::string_view::npos) {
    return not_yet(rest.size() < longest);
  }
  before = rest.substr(0, at);
  rest.remove_prefix(at + mark.size());
  return CallMatch::call;
}

/// A call with the name first.
CallMatch CallReader::operator()(const NamedCalls& form) const {
  if (const CallMatch found = take(form.call); found != CallMatch::call) {
    return found;
  }
  const std::size_t at = form.between.empty() ? rest.find('{') : rest.find(form.between);
  if (at == std::string_view::npos) {
    return not_yet(rest.size() < longest_name);
  }
  std::string_view name = rest.substr(0, at);
  rest.remove_prefix(at + form.between.size());
  if (!form.name_end.empty()) {
    name = name.substr(0, name.find(form.name_end));
  }
  name = without_blanks(name);
  skip_blanks(rest);
  const auto length = value_length(rest, form.quote);
  if (!length || !rest.starts_with('{')) {
    return rest.empty() || rest.starts_with('{') ? CallMatch::incomplete : CallMatch::none;
  }
  const std::string_view written = rest.substr(0, *length);
  const auto arguments = !form.quote.empty()  ? quoted_to_json(written, form.quote)
                         : read_json(written) ? std::optional(std::string(written))
                                              : std::nullopt;
  if (name.empty() || !arguments) {
    return CallMatch::none;
  }
  rest.remove_prefix(*length);
  if (take(form.call_end) == CallMatch::incomplete) {
    return CallMatch::incomplete;
  }
  calls.push_back({.name = std::string(name), .arguments = *arguments});
  return CallMatch::call;
}

CallMatch CallReader::take_name(const TaggedCalls& form, std::string_view& name) const {
  if (!form.name_end.empty()) {
    if (const CallMatch found = take_to(form.name_end, longest_name, name);
        found != CallMatch::call) {
      return found;
    }
  } else {
    const std::size_t at = std::min({rest.find('\n'), rest.find(form.key), rest.find(end)});
    if (at == std::string_view::npos) {
      return not_yet(rest.size() < longest_name);
    }
    name = rest.substr(0, at);
    rest.remove_prefix(at);
  }
  name = without_blanks(name);
  const bool is_name = !name.empty() && name.find_first_of("<>{}\"\n") == std::string_view::npos;
  return is_name ? CallMatch::call : CallMatch::none;
}

/// `none`: no argument follows.
CallMatch CallReader::take_argument(const TaggedCalls& form, const std::string& tool,
                                    Json& arguments) const {
  if (const CallMatch found = take(form.key); found != CallMatch::call) {
    return found;
  }
  // The mark that comes first says whether JSON follows.
  const bool as_json =
      !form.json_key_end.empty() && rest.find(form.json_key_end) < rest.find(form.key_end);
  std::string_view key;
  CallMatch found = take_to(as_json ? form.json_key_end : form.key_end, longest_name, key);
  if (found == CallMatch::call && !form.value.empty()) {
    found = take(form.value);
  }
  std::string_view value;
  if (found == CallMatch::call) {
    found = take_to(form.value_end, std::string_view::npos, value);
  }
  if (found != CallMatch::call) {
    return found;
  }
  const bool by_schema = form.json_key_end.empty();
  // On lines of its own.
  if (by_schema && value.size() > 1 && value.starts_with('\n') && value.ends_with('\n')) {
    value = value.substr(1, value.size() - 2);
  }
  const std::string name(without_blanks(key));
  const auto schema = schemas.find(tool);
  const bool known = schema != schemas.end() && schema->second.contains(name);
  std::optional<Json> json;
  if (by_schema ? !known || !takes_text(schema->second[name]) : as_json) {
    json = read_json(value);
  }
  arguments[name] = json ? *json : Json(std::string(value));
  return CallMatch::call;
}

CallMatch CallReader::operator()(const TaggedCalls& form) const {
  if (const CallMatch found = take(form.call); found != CallMatch::call) {
    return found;
  }
  std::string_view name;
  if (const CallMatch found = take_name(form, name); found != CallMatch::call) {
    return found;
  }
  const std::string tool(name);
  Json arguments = Json::object();
  CallMatch found = CallMatch::call;
  while (found == CallMatch::call) {
    const std::string_view before = rest;
    found = take_argument(form, tool, arguments);
    if (found == CallMatch::none && rest.size() != before.size()) {
      return CallMatch::none;  // an argument that does not end
    }
  }
  if (found == CallMatch::incomplete || take(form.call_end) == CallMatch::incomplete) {
    return CallMatch::incomplete;
  }
  calls.push_back({.name = tool, .arguments = json_text(arguments)});
  return CallMatch::call;
}

}  // namespace

namespace {

std::vector<ToolCallForm> forms_in_json() {
  const auto in_lists = [](std::string begin, std::string end) {
    return ToolCallForm{
        .begin = std::move(begin), .end = std::move(end), .calls = JsonCalls{.in_list = true}};
  };
  return {
      {.begin = "<tool_call>", .end = "</tool_call>"},  // Hermes, Qwen, Granite 4
      in_lists("<tool_calls>", "</tool_calls>"),
      {.begin = "<tool_calls>", .end = "</tool_calls>"},
      in_lists("<TOOLCALL>", "</TOOLCALL>"),  // Nemotron Nano
      {.begin = "<|START_ACTION|>",           // Command R7B
       .end = "<|END_ACTION|>",
       .calls = JsonCalls{.name = "tool_name", .arguments = "parameters", .in_list = true}},
      {.begin = "<|tools_prefix|>",  // Apertus
       .end = "<|tools_suffix|>",
       .calls = JsonCalls{.name = "", .in_list = true}},
      in_lists("[TOOL_CALLS]", ""),    // Mistral
      {.begin = "<|function_call|>"},  // GigaChat 3.1
  };
}

std::vector<ToolCallForm> forms_with_names() {
  return {
      {.begin = "[TOOL_CALLS]",  // Mistral Small 3.2
       .calls = NamedCalls{.between = "[ARGS]", .name_end = "[CALL_ID]"}},
      {.begin = "<｜tool▁calls▁begin｜>",  // DeepSeek V3.1
       .end = "<｜tool▁calls▁end｜>",
       .several = true,
       .calls = NamedCalls{.call = "<｜tool▁call▁begin｜>",
                           .between = "<｜tool▁sep｜>",
                           .call_end = "<｜tool▁call▁end｜>"}},
      {.begin = "<｜tool▁calls▁begin｜>",  // DeepSeek R1
       .end = "<｜tool▁calls▁end｜>",
       .several = true,
       .calls = NamedCalls{.call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                           .between = "\n```json\n",
                           .call_end = "```<｜tool▁call▁end｜>"}},
      {.begin = "<|tool_calls_section_begin|>",  // Kimi K2
       .end = "<|tool_calls_section_end|>",
       .several = true,
       .calls = NamedCalls{.call = "<|tool_call_begin|>functions.",
                           .between = "<|tool_call_argument_begin|>",
                           .call_end = "<|tool_call_end|>",
                           .name_end = ":"}},
      {.begin = "<function=",  // Functionary 3.1
       .calls = NamedCalls{.between = ">", .call_end = "</function>"}},
      {.begin = "<|tool_call>",  // Gemma 4
       .end = "<tool_call|>",
       .calls = NamedCalls{.call = "call:", .quote = "<|\"|>"}},
  };
}

/// DeepSeek V3.2 and V4.
ToolCallForm form_with_types(const std::string& section) {
  return {.begin = "<｜DSML｜" + section + ">",
          .end = "</｜DSML｜" + section + ">",
          .several = true,
          .calls = TaggedCalls{.call = "<｜DSML｜invoke name=\"",
                               .name_end = "\">",
                               .key = "<｜DSML｜parameter name=\"",
                               .key_end = "\" string=\"true\">",
                               .json_key_end = "\" string=\"false\">",
                               .value_end = "</｜DSML｜parameter>",
                               .call_end = "</｜DSML｜invoke>"}};
}

std::vector<ToolCallForm> forms_with_tags() {
  const TaggedCalls functions{.call = "<function=",
                              .name_end = ">",
                              .key = "<parameter=",
                              .key_end = ">",
                              .value_end = "</parameter>",
                              .call_end = "</function>"};
  return {
      // Qwen 3.5 and Coder, Nemotron 3
      {.begin = "<tool_call>", .end = "</tool_call>", .calls = functions},
      {.begin = "<seed:tool_call>", .end = "</seed:tool_call>", .calls = functions},  // Seed OSS
      {.begin = "<tool_call>",                                                        // GLM 4.5
       .end = "</tool_call>",
       .calls = TaggedCalls{.key = "<arg_key>",
                            .key_end = "</arg_key>",
                            .value = "<arg_value>",
                            .value_end = "</arg_value>"}},
      {.begin = "<minimax:tool_call>",  // MiniMax M2
       .end = "</minimax:tool_call>",
       .several = true,
       .calls = TaggedCalls{.call = "<invoke name=\"",
                            .name_end = "\">",
                            .key = "<parameter name=\"",
                            .key_end = "\">",
                            .value_end = "</parameter>",
                            .call_end = "</invoke>"}},
      {.begin = "<tool_calls:opensource>",  // Hunyuan 3
       .end = "</tool_calls:opensource>",
       .several = true,
       .calls = TaggedCalls{.call = "<tool_call:opensource>",
                            .name_end = "<tool_sep:opensource>",
                            .key = "<arg_key:opensource>",
                            .key_end = "</arg_key:opensource>",
                            .value = "<arg_value:opensource>",
                            .value_end = "</arg_value:opensource>",
                            .call_end = "</tool_call:opensource>"}},
      form_with_types("function_calls"),
      form_with_types("tool_calls"),
  };
}

/// Whole answers.
std::vector<ToolCallForm> forms_of_answers() {
  return {
      {.calls = ChannelCalls{.message = "<|start|>assistant",  // gpt-oss
                             .channel = "<|channel|>",
                             .content = "<|message|>",
                             .end = "<|end|>",
                             .recipient = "to=functions.",
                             .json = "<|constrain|>",
                             .call_end = "<|call|>",
                             .thoughts = "analysis"}},
      {.calls = JsonCalls{.arguments = "parameters", .opening = "<|python_tag|>"}},  // Llama 3.1
  };
}

}  // namespace

std::span<const ToolCallForm> tool_call_forms() {
  static const std::vector<ToolCallForm> forms = [] {
    std::vector<ToolCallForm> all;
    for (const auto& some :
         {forms_in_json(), forms_with_names(), forms_with_tags(), forms_of_answers()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return forms;
}

std::vector<std::string> ToolCallForm::marks() const {
  struct {
    std::vector<std::string> operator()(const JsonCalls& form) const { return {form.opening}; }
    std::vector<std::string> operator()(const NamedCalls& form) const {
      return {form.call, form.between, form.call_end, form.name_end, form.quote};
    }
    std::vector<std::string> operator()(const TaggedCalls& form) const {
      return {form.call,         form.name_end, form.key,       form.key_end,
              form.json_key_end, form.value,    form.value_end, form.call_end};
    }
    std::vector<std::string> operator()(const ChannelCalls& form) const {
      return {form.message, form.channel, form.content, form.end, form.json, form.call_end};
    }
  } of_calls;
  std::vector<std::string> all = std::visit(of_calls, calls);
  all.insert(all.end(), {begin, end});
  return all;
}

std::string_view ToolCallForm::answer_in(std::string_view text) const {
  if (const auto* const channels = std::get_if<ChannelCalls>(&calls)) {
    const std::size_t at = text.find(channels->message);
    return at == std::string_view::npos ? text : text.substr(at + channels->message.size());
  }
  if (!begin.empty()) {
    return text;
  }
  const std::size_t first = text.find('{');
  const std::size_t last = text.rfind('}');
  return first == std::string_view::npos || last == std::string_view::npos || last < first
             ? std::string_view()
             : text.substr(first, last + 1 - first);
}

bool ToolCallForm::of_every_answer() const { return std::holds_alternative<ChannelCalls>(calls); }

struct ToolCallReader::Schemas {
  std::map<std::string, nlohmann::json> of_tools;
};

ToolCallReader::ToolCallReader(ToolCallForm form, std::span<const Tool> tools)
    : form_(std::move(form)) {
  auto schemas = std::make_shared<Schemas>();
  for (const Tool& tool : tools) {
    const ParsedJson schema = parse_json_object(tool.parameters);
    const auto properties = schema.value.find("properties");
    if (schema.problem.empty() && properties != schema.value.end() && properties->is_object()) {
      schemas->of_tools[tool.name] = *properties;
    }
  }
  schemas_ = std::move(schemas);
}

/// What begins with the mark of a section.
struct ToolCallReader::Section {
  enum class Kind : std::uint8_t { calls, incomplete, none };
  Kind kind = Kind::none;
  std::vector<ToolCall> calls = {};
  std::size_t length = 0;  // of calls
};

ToolCallReader::Part ToolCallReader::add(std::string_view part) {
  held_ += part;
  return advance(false);
}

ToolCallReader::Part ToolCallReader::finish() { return advance(true); }

void ToolCallReader::show(std::string_view text, Part& part) {
  if (has_call_ && text.find_first_not_of(blanks) == std::string_view::npos) {
    return;
  }
  has_text_ = has_text_ || !text.empty();
  part.text += text;
}

ToolCallReader::Part ToolCallReader::advance(bool whole) {
  if (const auto* const channels = std::get_if<ChannelCalls>(&form_.calls)) {
    return advance_messages(*channels, whole);
  }
  Part part;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const std::size_t at =
        form_.begin.empty() ? (has_text_ ? std::string_view::npos : 0) : rest.find(form_.begin);
    if (at == std::string_view::npos) {
      // Blanks, and what may become a mark, wait for what follows them.
      std::size_t known = rest.size();
      if (!whole) {
        known -= begun_at_end(rest, form_.begin);
        known = rest.substr(0, known).find_last_not_of(blanks) + 1;
      }
      show(rest.substr(0, known), part);
      rest.remove_prefix(known);
      break;
    }
    Section found = section(rest.substr(at), whole);
    const std::string_view before = rest.substr(0, at);
    show(before.substr(0, before.find_last_not_of(blanks) + 1), part);
    rest.remove_prefix(at);
    if (found.kind == Section::Kind::incomplete && !whole) {
      break;
    }
    if (found.kind == Section::Kind::calls) {
      has_call_ = true;
      part.calls.insert(part.calls.end(), found.calls.begin(), found.calls.end());
      rest.remove_prefix(found.length);
    } else {
      const std::size_t shown = form_.begin.empty() ? rest.size() : form_.begin.size();
      show(rest.substr(0, shown), part);
      rest.remove_prefix(shown);
    }
  }
  held_ = std::string(rest);
  return part;
}

/// `text` begins with the mark of a section.
ToolCallReader::Section ToolCallReader::section(std::string_view text, bool whole) const {
  Section all;
  std::string_view rest = text.substr(form_.begin.size());
  const CallReader read{rest, form_.end, schemas_->of_tools, whole, all.calls};
  while (true) {
    skip_blanks(rest);
    if (const CallMatch found = std::visit(read, form_.calls); found != CallMatch::call) {
      return {.kind = found == CallMatch::none ? Section::Kind::none : Section::Kind::incomplete};
    }
    all.length = text.size() - rest.size();
    skip_blanks(rest);
    if (form_.begin.empty()) {
      all.kind = !rest.empty() ? Section::Kind::none
                 : whole       ? Section::Kind::calls
                               : Section::Kind::incomplete;
      all.length = text.size();
      return all;
    }
    if (form_.end.empty()) {
      all.kind = Section::Kind::calls;
      return all;
    }
    const auto ended = begins(rest, form_.end);
    if (!ended && !whole) {
      return {.kind = Section::Kind::incomplete};
    }
    if (ended.value_or(true)) {  // the answer may have ended within the mark
      all.kind = Section::Kind::calls;
      all.length = text.size() - rest.size() + std::min(rest.size(), form_.end.size());
      return all;
    }
  }
}

}  // namespace tessera::text
