module;
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>

#include "json_parts.hpp"
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

using Json = nlohmann::json;

/// The members of an object in their order, as they are written.
class Members {
 public:
  explicit Members(std::string_view object) {
    for (const auto& [name, value] : members_as_written(object)) {
      all_.emplace_back(name, value);
    }
  }

  const std::string* find(std::string_view name) const {
    const auto found = std::ranges::find(all_, name, &Member::first);
    return found == all_.end() ? nullptr : &found->second;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  void set(std::string_view name, std::string value) {
    remove(name);
    all_.emplace_back(name, std::move(value));
  }
  void remove(std::string_view name) {
    std::erase_if(all_, [&](const Member& member) { return member.first == name; });
  }
  /// Gives members other names: those here by those there. A member that has such a name already is
  /// set aside, as one that nothing reads and that is counted.
  void rename(const std::map<std::string, std::string>& names) {
    std::set<std::string> given;
    for (const auto& [from, to] : names) {
      if (has(from)) {
        given.insert(to);
      }
    }
    for (auto& [name, value] : all_) {
      if (const auto found = names.find(name); found != names.end()) {
        name = found->second;
      } else if (given.contains(name)) {
        name += " (another member)";
      }
    }
  }
  std::string object() const {
    std::string text;
    for (const auto& [name, value] : all_) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json_text(Json(name)), value);
    }
    return "{" + text + "}";
  }

 private:
  using Member = std::pair<std::string, std::string>;
  std::vector<Member> all_;
};

/// Roles by the words for speakers in data sets; others stay, and are judged with the messages.
std::string role_of_speaker(const std::string& speaker) {
  static const std::map<std::string, const char*, std::less<>> roles = {
      {"human", "user"},     {"gpt", "assistant"},    {"chatgpt", "assistant"},
      {"bing", "assistant"}, {"bard", "assistant"},   {"model", "assistant"},
      {"bot", "assistant"},  {"observation", "tool"}, {"function_response", "tool"}};
  const auto found = roles.find(speaker);
  return found == roles.end() ? speaker : found->second;
}

/// What a message's members are called.
struct MessageNames {
  std::string role = "role";
  std::string content = "content";
};

std::string said(const char* role, const Json& content) {
  return json_text(Json{{"role", role}, {"content", content}});
}

std::string message_of(std::string_view written, std::size_t number, const MessageNames& names) {
  const Json message = parse_json(written);
  const auto member = [&](const std::string& name) -> const Json& {
    const auto found = message.is_object() ? message.find(name) : message.end();
    if (found == message.end()) {
      fail_input({.wrong = fmt::format("message {} has no '{}'", number, name),
                  .expected = fmt::format("'{}' and '{}'", names.role, names.content)});
    }
    return *found;
  };
  const Json& speaker = member(names.role);
  static_cast<void>(member(names.content));
  Members own(written);
  if (!speaker.is_string()) {
    fail_input({.wrong = fmt::format("'{}' of message {} must be a text", names.role, number),
                .got = speaker.type_name()});
  }
  if (speaker == "function_call") {
    fail_input({.wrong = fmt::format("message {} is of 'function_call'", number),
                .advice = "write the call as 'tool_calls' of an answer"});
  }
  own.rename({{names.role, "role"}, {names.content, "content"}});
  own.set("role", json_text(Json(role_of_speaker(speaker.get<std::string>()))));
  return own.object();
}

/// A list of messages, or one message as a list; what is neither is left to who reads messages.
std::string messages_of(const std::string& written, const MessageNames& names) {
  if (written.starts_with('{')) {
    return "[" + message_of(written, 1, names) + "]";
  }
  if (!written.starts_with('[')) {
    return written;
  }
  std::string all;
  std::size_t number = 0;
  for (const std::string_view one : elements_as_written(written)) {
    all += (number == 0 ? "" : ",") + message_of(one, number + 1, names);
    ++number;
  }
  return "[" + all + "]";
}

/// A member that is a text; nothing: there is none, or it is blank.
std::optional<std::string> text_of(const Members& record, const char* name) {
  const std::string* const written = record.find(name);
  const Json value = written == nullptr ? Json() : parse_json(*written);
  if (value.is_null()) {
    return std::nullopt;
  }
  if (!value.is_string()) {
    fail_input({.wrong = fmt::format("'{}' must be a text", name), .got = value.type_name()});
  }
  std::string text = value.get<std::string>();
  return without_blanks(text).empty() ? std::nullopt : std::optional(std::move(text));
}

std::string with_first(const std::string& message, const std::string& list) {
  return "[" + message + (list == "[]" ? "" : ",") + list.substr(1);
}

/// Moves a text `system` into the messages.
void add_system(Members& record, std::string& messages) {
  const auto text = text_of(record, "system");
  if (text && messages.starts_with('[')) {
    const Json list = parse_json(messages);
    if (!list.empty() && list[0].value("role", "") == "system") {
      fail_input({.wrong = "'system' is there beside a first message of the system"});
    }
    messages = with_first(said("system", *text), messages);
  }
  record.remove("system");
}

bool compares(const Members& record) { return record.has("chosen") && record.has("rejected"); }

/// Replaces the members of another form by messages: with two answers by a prompt and both.
void set_messages(Members& record, std::string messages,
                  const std::function<std::string(const char*)>& answer) {
  add_system(record, messages);
  if (!compares(record)) {
    record.set("messages", std::move(messages));
    return;
  }
  record.set("prompt", std::move(messages));
  for (const char* const name : {"chosen", "rejected"}) {
    record.set(name, answer(name));
  }
}

/// Of ShareGPT: `conversations` with `from` and `value`, or with the names of messages.
void read_conversations(Members& record, const MessageNames& given) {
  const std::string list = *record.find("conversations");
  const Json value = parse_json(list);
  const bool own = value.is_array() && !value.empty() && value[0].is_object() &&
                   value[0].contains("from") && !value[0].contains(given.role);
  const MessageNames names = own ? MessageNames{.role = "from", .content = "value"} : given;
  if (!value.is_array() || value.empty()) {
    fail_input({.wrong = "'conversations' must be a list of messages that is not empty"});
  }
  record.remove("conversations");
  set_messages(record, messages_of(list, names),
               [&](const char* name) { return messages_of(*record.find(name), names); });
}

/// Of Alpaca: a question of `instruction` and `input`, with earlier ones in `history`.
void read_instruction(Members& record) {
  const auto instruction = text_of(record, "instruction");
  if (!instruction) {
    fail_input({.wrong = "'instruction' is empty"});
  }
  std::string messages;
  const auto add = [&](const char* role, const Json& text) {
    messages += (messages.empty() ? "" : ",") + said(role, text);
  };
  const std::string* const history = record.find("history");
  const Json turns = history == nullptr ? Json() : parse_json(*history);
  for (const Json& turn : turns.is_null() ? Json::array() : turns) {
    if (!turns.is_array() || !turn.is_array() || turn.size() != 2) {
      fail_input({.wrong = "'history' must be a list of questions with their answers"});
    }
    add("user", turn[0]);
    add("assistant", turn[1]);
  }
  const auto input = text_of(record, "input");
  add("user", input ? *instruction + "\n\n" + *input : *instruction);
  const auto answer = [&](const char* name) { return Json(text_of(record, name).value_or("")); };
  if (!compares(record)) {
    add("assistant", answer("output"));
  }
  for (const char* const name : {"instruction", "input", "history", "output"}) {
    record.remove(name);
  }
  set_messages(record, "[" + messages + "]",
               [&](const char* name) { return "[" + said("assistant", answer(name)) + "]"; });
}

bool has_instruction(const Members& record) {
  return record.has("instruction") && (record.has("output") || compares(record)) &&
         !record.has("messages") && !record.has("prompt") && !record.has("completion");
}

}  // namespace

RecordForms::RecordForms(RecordColumns columns) : columns_(std::move(columns)) {
  std::set<std::string> there;
  for (const auto& [name, column] : columns_) {
    const auto refuse = [&](const std::string& wrong, const std::string& expected) {
      fail_input({.thing = "columns", .wrong = wrong, .expected = expected});
    };
    if (std::ranges::find(names(), name) == names().end()) {
      refuse(fmt::format("'{}' is no member of a record", shown(name, 40)), join_words(names()));
    }
    if (column.empty() || !there.insert(column).second) {
      refuse(column.empty() ? fmt::format("'{}' has an empty name", name)
                            : fmt::format("two members are called '{}'", shown(column, 40)),
             "a name of its own for each");
    }
  }
}

const std::vector<std::string>& RecordForms::names() {
  static const std::vector<std::string> all = {
      "messages", "prompt", "completion",  "text",  "image",   "label",         "chosen",
      "rejected", "tools",  "system",      "role",  "content", "conversations", "history",
      "input",    "output", "instruction", "words", "labels",  "input_ids",     "attention_mask"};
  return all;
}

std::string RecordForms::standard(std::string_view record) const {
  const auto mentions = [&](std::string_view name) {
    return record.find(name) != std::string_view::npos;
  };
  if ((columns_.empty() && !mentions("\"conversations\"") && !mentions("\"instruction\"")) ||
      !parse_json_object(record, record_limits).problem.empty()) {
    return std::string(record);
  }
  Members members(record);
  MessageNames names;
  std::set<std::string> optional = {"tools", "system", "history", "input", "attention_mask"};
  if (columns_.contains("input_ids")) {
    optional.insert("labels");
  }
  std::map<std::string, std::string> renamed;
  for (const auto& [name, column] : columns_) {
    if (name == "role" || name == "content") {
      (name == "role" ? names.role : names.content) = column;
    } else if (members.has(column)) {
      renamed[column] = name;
    } else if (!optional.contains(name)) {
      fail_input({.wrong = fmt::format("the column '{}' is missing", shown(column, 60))});
    }
  }
  members.rename(renamed);
  const bool conversations = members.has("conversations") && !members.has("messages");
  const bool instruction = has_instruction(members) && !conversations;
  if ((conversations || instruction) && members.has("text")) {
    const bool of_text = columns_.contains("text");
    const bool of_form = columns_.contains(conversations ? "conversations" : "instruction");
    if (of_text == of_form) {
      fail_input({.wrong = fmt::format("the record has 'text' beside '{}'",
                                       conversations ? "conversations" : "instruction"),
                  .advice = fmt::format("say which is trained: data.columns = {{ text = \"text\" }}"
                                        " or {{ {0} = \"{0}\" }}",
                                        conversations ? "conversations" : "instruction")});
    }
    if (of_text) {
      return members.object();
    }
    members.rename({{"text", "text (another member)"}});
  }
  if (conversations) {
    read_conversations(members, names);
  } else if (instruction) {
    read_instruction(members);
  } else if (columns_.contains("role") || columns_.contains("content")) {
    for (const char* const name : {"messages", "prompt", "completion", "chosen", "rejected"}) {
      if (const std::string* const list = members.find(name); list && list->starts_with('[')) {
        members.set(name, messages_of(*list, names));
      }
    }
  }
  return members.object();
}

}  // namespace tessera::data
