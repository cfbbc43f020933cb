module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;

namespace tessera::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view blanks = " \t\r\n";

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
}

/// Whether a text begins with another one; none: it ends before that is known.
std::optional<bool> begins(std::string_view text, std::string_view with) {
  const std::size_t length = std::min(text.size(), with.size());
  if (text.substr(0, length) != with.substr(0, length)) {
    return false;
  }
  return text.size() < with.size() ? std::nullopt : std::optional(true);
}

/// The length of the JSON object or list at the beginning of a text; none: it does not end.
std::optional<std::size_t> json_length(std::string_view text) {
  std::size_t depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::nullopt;
}

/// A JSON object or list from a model; none: it is not JSON.
std::optional<Json> read_json(std::string_view text) {
  const std::string wrapped = "{\"value\":" + std::string(text) + "}";
  if (!parse_json_object(wrapped).problem.empty()) {
    return std::nullopt;
  }
  try {
    return parse_ordered_json(wrapped)["value"];
  } catch (const Error&) {
    return std::nullopt;  // a number that would change
  }
}

/// How many bytes at the end of a text may be the beginning of a mark.
std::size_t begun_at_end(std::string_view text, std::string_view mark) {
  for (std::size_t length = std::min(text.size(), mark.size()); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) {
      return length;
    }
  }
  return 0;
}

}  // namespace

std::span<const ToolCallForm> tool_call_forms() {
  static const std::array<ToolCallForm, 12> forms = {{
      {.begin = "<tool_call>", .end = "</tool_call>"},  // Hermes, Qwen, Granite 4
      {.begin = "<tool_calls>", .end = "</tool_calls>", .in_list = true},
      {.begin = "<tool_calls>", .end = "</tool_calls>"},
      {.begin = "<TOOLCALL>", .end = "</TOOLCALL>", .in_list = true},  // Nemotron Nano
      {.begin = "<|START_ACTION|>",                                    // Command R7B
       .end = "<|END_ACTION|>",
       .in_list = true,
       .name = "tool_name",
       .arguments = "parameters"},
      {.begin = "[TOOL_CALLS]", .in_list = true},                               // Mistral
      {.begin = "[TOOL_CALLS]", .between = "[ARGS]", .name_end = "[CALL_ID]"},  // Mistral Small 3.2
      {.begin = "<|function_call|>"},                                           // GigaChat 3.1
      {.begin = "<｜tool▁calls▁begin｜>",                                       // DeepSeek V3.1
       .end = "<｜tool▁calls▁end｜>",
       .call = "<｜tool▁call▁begin｜>",
       .between = "<｜tool▁sep｜>",
       .call_end = "<｜tool▁call▁end｜>"},
      {.begin = "<｜tool▁calls▁begin｜>",  // DeepSeek R1
       .end = "<｜tool▁calls▁end｜>",
       .call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
       .between = "\n```json\n",
       .call_end = "```<｜tool▁call▁end｜>"},
      {.begin = "<function=", .between = ">", .call_end = "</function>"},  // Functionary 3.1
      {.arguments = "parameters", .opening = "<|python_tag|>"},            // Llama 3.1
  }};
  return forms;
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

bool ToolCallReader::read_calls(std::string_view json, std::vector<ToolCall>& calls) const {
  const auto value = read_json(json);
  if (!value || value->is_array() != form_.in_list) {
    return false;
  }
  for (const Json& call : form_.in_list ? *value : Json::array({*value})) {
    if (!call.is_object() || !call.contains(form_.name) || !call[form_.name].is_string()) {
      return false;
    }
    const Json arguments = call.value(form_.arguments, Json::object());
    if (!arguments.is_object() && !arguments.is_string()) {
      return false;
    }
    calls.push_back(
        {.name = call[form_.name].get<std::string>(),
         .arguments = arguments.is_string() ? arguments.get<std::string>() : json_text(arguments)});
  }
  return true;
}

/// A call with the name first. False: it is none, or is not complete.
bool ToolCallReader::read_named(std::string_view& rest, bool whole, Section& found) const {
  constexpr std::size_t longest_name = 200;
  if (!begins(rest, form_.call).value_or(false)) {
    found.kind = !whole && !begins(rest, form_.call) ? Section::Kind::incomplete : found.kind;
    return false;
  }
  rest.remove_prefix(form_.call.size());
  const std::size_t between = rest.find(form_.between);
  if (between == std::string_view::npos) {
    found.kind = rest.size() < longest_name ? Section::Kind::incomplete : Section::Kind::none;
    return false;
  }
  std::string_view name = rest.substr(0, between);
  if (!form_.name_end.empty()) {
    name = name.substr(0, name.find(form_.name_end));
  }
  skip_blanks(name);
  name = name.substr(0, name.find_last_not_of(blanks) + 1);
  rest.remove_prefix(between + form_.between.size());
  skip_blanks(rest);
  const auto length = json_length(rest);
  if (!length || !rest.starts_with('{')) {
    found.kind =
        rest.empty() || rest.starts_with('{') ? Section::Kind::incomplete : Section::Kind::none;
    return false;
  }
  const std::string_view arguments = rest.substr(0, *length);
  if (name.empty() || !read_json(arguments)) {
    found.kind = Section::Kind::none;
    return false;
  }
  rest.remove_prefix(*length);
  std::string_view after = rest;
  skip_blanks(after);
  const auto ended = begins(after, form_.call_end);
  if (!ended && !whole) {
    found.kind = Section::Kind::incomplete;
    return false;
  }
  if (ended.value_or(false)) {
    rest = after.substr(form_.call_end.size());
  }
  found.calls.push_back({.name = std::string(name), .arguments = std::string(arguments)});
  return true;
}

/// `text` begins with the mark of a section.
ToolCallReader::Section ToolCallReader::section(std::string_view text, bool whole) const {
  Section found;
  std::string_view rest = text.substr(form_.begin.size());
  skip_blanks(rest);
  if (!form_.opening.empty()) {
    const auto opened = begins(rest, form_.opening);
    if (!opened && !whole && !rest.empty()) {
      return {.kind = Section::Kind::incomplete};
    }
    rest.remove_prefix(opened.value_or(false) ? form_.opening.size() : 0);
    skip_blanks(rest);
  }
  while (true) {
    if (!form_.between.empty()) {
      if (!read_named(rest, whole, found)) {
        return {.kind = found.kind};
      }
    } else {
      const bool opens = rest.starts_with(form_.in_list ? '[' : '{');
      const auto length = opens ? json_length(rest) : std::nullopt;
      if (!length) {
        return {.kind = opens || rest.empty() ? Section::Kind::incomplete : Section::Kind::none};
      }
      if (!read_calls(rest.substr(0, *length), found.calls)) {
        return {.kind = Section::Kind::none};
      }
      rest.remove_prefix(*length);
    }
    found.length = text.size() - rest.size();
    if (form_.begin.empty()) {
      skip_blanks(rest);
      found.kind = !rest.empty() ? Section::Kind::none
                   : whole       ? Section::Kind::calls
                                 : Section::Kind::incomplete;
      found.length = text.size();
      return found;
    }
    skip_blanks(rest);
    if (form_.end.empty()) {
      found.kind = Section::Kind::calls;
      return found;
    }
    const auto ended = begins(rest, form_.end);
    if (!ended && !whole) {
      return {.kind = Section::Kind::incomplete};
    }
    if (ended.value_or(true)) {  // the answer may have ended within the mark
      found.kind = Section::Kind::calls;
      found.length = text.size() - rest.size() + std::min(rest.size(), form_.end.size());
      return found;
    }
  }
}

}  // namespace tessera::text
