#include "contents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "jinja/value.hpp"

namespace tessera::data {
namespace {

using Json = nlohmann::json;

bool is_blank(char c) { return std::string_view(" \t\r\n\v\f").find(c) != std::string_view::npos; }

/// Without white space, as templates trim, indent and join lines.
std::string squeezed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::ranges::copy_if(text, std::back_inserter(out), [](char c) { return !is_blank(c); });
  return out;
}

std::string replaced(std::string_view text,
                     std::initializer_list<std::pair<char, std::string_view>> characters) {
  std::string out;
  for (const char c : text) {
    const auto found =
        std::ranges::find_if(characters, [&](const auto& one) { return one.first == c; });
    found == characters.end() ? out.append(1, c) : out.append(found->second);
  }
  return out;
}

std::string as_json(const std::string& text, bool ascii) {
  std::string quoted = Json(text).dump(-1, ' ', ascii, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

/// A text as templates may write it.
std::vector<std::string> forms_of(const std::string& text) {
  const std::string json = as_json(text, false);
  const std::string python =
      replaced(text, {{'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}});
  return {json,
          as_json(text, true),
          as_json(json, false),
          python,
          replaced(python, {{'\'', "\\'"}}),
          replaced(text,
                   {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}}),
          replaced(text, {{'&', "\\u0026"},
                          {'<', "\\u003c"},
                          {'>', "\\u003e"},
                          {'\'', "\\u0027"},
                          {'"', "\\\""}})};
}

/// The text that a template has written.
class RenderedText {
 public:
  explicit RenderedText(std::string_view text) : text_(text), squeezed_(squeezed(text)) {}

  /// The place of a byte of the text, which is not before the one of the last call.
  std::size_t place(std::size_t byte) {
    for (; byte_ < std::min(byte, text_.size()); ++byte_) {
      place_ += is_blank(text_[byte_]) ? 0 : 1;
    }
    return place_;
  }
  /// The place after the content, at its first one from `from` on; nothing: it is not there.
  std::optional<std::size_t> end_of(const std::string& content, std::size_t from) const {
    const std::string stripped(jinja::stripped(content, nullptr, true, true));
    if (const auto end = end_of_form(stripped, from)) {
      return end;
    }
    for (const std::string& form : forms_of(stripped)) {
      if (const auto end = end_of_form(form, from)) {
        return end;
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<std::size_t> end_of_form(const std::string& form, std::size_t from) const {
    const std::string wanted = squeezed(form);
    const std::size_t at = squeezed_.find(wanted, from);
    return at == std::string::npos ? std::nullopt : std::optional(at + wanted.size());
  }

  std::string_view text_;
  std::string squeezed_;
  std::size_t byte_ = 0;
  std::size_t place_ = 0;
};

/// Thoughts that are written within an answer, and the answer after them.
std::optional<std::pair<std::string, std::string>> thoughts_of(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> tags = {
      {{"<think>", "</think>"},
       {"<thinking>", "</thinking>"},
       {"<thought>", "</thought>"},
       {"<reasoning>", "</reasoning>"},
       {"[THINK]", "[/THINK]"}}};
  for (const auto& [open, close] : tags) {
    const std::size_t end = text.rfind(close);
    if (end == std::string::npos) {
      continue;
    }
    std::string thoughts = text.substr(0, end);
    if (const std::size_t begin = thoughts.find(open); begin != std::string::npos) {
      thoughts.erase(begin, open.size());
    }
    return std::pair(std::move(thoughts), text.substr(end + close.size()));
  }
  return std::nullopt;
}

/// Compares the messages one after the other.
class Comparison {
 public:
  Comparison(RenderedText& written, std::vector<DroppedContent>& dropped,
             std::set<std::string>& unread)
      : written_(written), dropped_(dropped), unread_(unread) {}

  void message(const Message& message, std::size_t number, const MessagePlace& place) {
    number_ = number;
    from_ = place.begin ? written_.place(*place.begin) : to_;
    limit_ = place.end ? written_.place(*place.end) : std::string::npos;
    if (message.role == Role::system) {
      for (const std::string& text : message.texts) {  // templates write it where they want
        after_end_ = false;
        if (!written_.end_of(text, 0)) {
          drop("system", text);
        }
      }
    } else {
      contents(message);
    }
    further(message.json);
  }

  void tools(const Json& tools) {
    for (const Json& tool : tools.is_array() ? tools : Json::array()) {
      const Json& function =
          tool.contains("function") && tool["function"].is_object() ? tool["function"] : tool;
      if (function.contains("name") && function["name"].is_string() &&
          !written_.end_of(function["name"], 0)) {
        drop("tools", function["name"]);
      }
    }
  }

 private:
  void drop(const char* kind, const std::string& text) {
    dropped_.push_back({kind, number_, text, after_end_});
  }

  bool find(const std::string& text) {
    const auto end = written_.end_of(text, from_);
    after_end_ = end.value_or(0) > limit_;
    if (after_end_) {
      return false;
    }
    to_ = std::max(to_, end.value_or(0));
    return end.has_value();
  }

  void contents(const Message& message) {
    for (const std::string& text : message.texts) {
      if (find(text)) {
        continue;
      }
      const auto parts = message.role == Role::assistant ? thoughts_of(text) : std::nullopt;
      if (!parts) {
        drop(message.role == Role::tool ? "tool_results" : "content", text);
        continue;
      }
      if (!find(parts->first)) {
        drop("reasoning", parts->first);
      }
      if (!find(parts->second)) {
        drop("content", parts->second);
      }
    }
  }

  /// A call's name, and the names and texts of its arguments. A template that writes these alone
  /// writes the call; the name is one of the members that are not read.
  void call(const Json& call) {
    if (!call.is_object()) {
      return;
    }
    const Json& function =
        call.contains("function") && call["function"].is_object() ? call["function"] : call;
    const bool has_name = function.contains("name") && function["name"].is_string();
    const std::string name = has_name ? function["name"] : "";
    const bool names_it = !has_name || find(name);
    std::vector<std::string> texts;
    if (const auto arguments = function.find("arguments"); arguments != function.end()) {
      const Json own = arguments->is_string()
                           ? Json::parse(arguments->get_ref<const std::string&>(), nullptr, false)
                           : *arguments;
      for_each_text(own.is_discarded() ? *arguments : own,
                    [&](const std::string& text) { texts.push_back(text); });
    }
    for (const std::string& text : texts) {
      if (!find(text)) {
        drop("tool_calls", names_it ? text : name);
        return;
      }
    }
    if (!names_it && texts.empty()) {
      drop("tool_calls", name);
    } else if (!names_it) {
      unread_.insert("messages.tool_calls.function.name");
    }
  }

  void further(const Json& message) {
    for (const auto& [name, value] : message.items()) {
      if (name == "tool_calls" || name == "function_call") {
        for (const Json& one : value.is_array() ? value : Json::array({value})) {
          call(one);
        }
      } else if (name == "reasoning_content" || name == "reasoning" || name == "thinking" ||
                 name == "thought" || name == "thoughts" || name == "tool_plan") {
        if (value.is_string() && !find(value)) {
          drop("reasoning", value);
        }
      } else if (name == "refusal") {
        if (value.is_string() && !find(value)) {
          drop("content", value);
        }
      } else if (!known(name) && !(value.is_string() && find(value)) && !value.is_null()) {
        unread_.insert("messages." + name);
      }
    }
  }

  static bool known(std::string_view name) {
    constexpr std::array<std::string_view, 7> names = {
        "role", "content", "weight", "train", "tool_call_id", "name", "training"};
    return std::ranges::find(names, name) != names.end();
  }

  RenderedText& written_;
  std::vector<DroppedContent>& dropped_;
  std::set<std::string>& unread_;
  std::size_t number_ = 0;
  std::size_t from_ = 0;                   // where the message may begin
  std::size_t to_ = 0;                     // after what was found
  std::size_t limit_ = std::string::npos;  // where the message must end
  bool after_end_ = false;                 // the last content that was looked for is after it
};

}  // namespace

const std::vector<std::string>& dropped_kinds() {
  static const std::vector<std::string> kinds = {"content",    "system",       "reasoning",
                                                 "tool_calls", "tool_results", "tools"};
  return kinds;
}

std::vector<DroppedContent> dropped_contents(const Conversation& conversation,
                                             std::string_view text,
                                             const std::vector<MessagePlace>& places,
                                             std::set<std::string>& unread) {
  RenderedText written(text);
  std::vector<DroppedContent> dropped;
  Comparison comparison(written, dropped, unread);
  comparison.tools(conversation.tools);
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    comparison.message(conversation.messages[i], i + 1, places[i]);
  }
  return dropped;
}

}  // namespace tessera::data
