#include "conversations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>

#include "json_parts.hpp"
#include "text_checks.hpp"

import tessera.base;

namespace tessera::data {
namespace {

using Json = nlohmann::json;

/// Whether it says anything: programs write empty members where a record has none.
bool says_nothing(const Json& value) {
  return value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty());
}

/// Members of records that other programs read, and what to do about them here.
const std::map<std::string, const char*, std::less<>>& refused_members() {
  static const std::map<std::string, const char*, std::less<>> all = {
      {"functions", "name them 'tools'"},
      {"system", "write it as the first message, of the system"},
      {"image", "only texts are trained; remove it"},
      {"images", "only texts are trained; remove it"},
      {"video", "only texts are trained; remove it"},
      {"videos", "only texts are trained; remove it"},
      {"audio", "only texts are trained; remove it"},
      {"audios", "only texts are trained; remove it"},
      {"weight", "give sources weights with data.sources"},
      {"train", "mark messages, with 'train'"},
      {"training", "mark messages, with 'train'"},
      {"mask", "mark messages, with 'train'"},
      {"masks", "mark messages, with 'train'"},
      {"loss_mask", "mark messages, with 'train'"},
      {"assistant_masks", "mark messages, with 'train'"},
      {"completion_mask", "mark messages, with 'train'"}};
  return all;
}

/// The texts of a message's content: a text, or a list of parts with texts.
std::vector<std::string> texts_of(const Json& message, std::size_t number) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    return {};
  }
  if (content->is_string()) {
    return {content->get<std::string>()};
  }
  std::vector<std::string> texts;
  for (const Json& part : content->is_array() ? *content : Json::array({nullptr})) {
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string()) {
      fail_input({.wrong = fmt::format("the content of message {} must be a text or a list of "
                                       "parts with a text",
                                       number)});
    }
    texts.push_back(part["text"].get<std::string>());
  }
  return texts;
}

/// User and assistant alternate; a tool's results come after the assistant; the system is first.
bool may_follow(std::optional<Role> before, Role role) {
  switch (role) {
    case Role::system:
      return !before;
    case Role::user:
      return !before || *before == Role::system || *before == Role::assistant;
    case Role::assistant:
      return before && (*before == Role::user || *before == Role::tool);
    default:
      return before && (*before == Role::assistant || *before == Role::tool);
  }
}

void check_order(const std::vector<Message>& messages) {
  std::optional<Role> before;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (!may_follow(before, message.role)) {
      fail_input(
          {.wrong = fmt::format(
               "message {} is of the {} {}", i + 1, name_of_role(message.role),
               before ? fmt::format("after the {}", name_of_role(*before)) : "at the beginning"),
           .expected = "user and assistant by turns, after at most one of the system"});
    }
    before = message.role;
    const auto has = [&](const char* name) {
      const auto found = message.json.find(name);
      return found != message.json.end() && !says_nothing(*found);
    };
    if (message.role == Role::assistant && !has("tool_calls") && !has("function_call") &&
        std::ranges::all_of(message.texts, is_blank)) {
      fail_input({.wrong = fmt::format("the answer of message {} is empty", i + 1)});
    }
  }
  if (before != Role::assistant) {
    fail_input({.wrong = fmt::format("the conversation ends with a message of the {}",
                                     name_of_role(*before)),
                .expected = "an answer of the assistant"});
  }
}

/// What a message says of whether it is learned: `weight` 0 or 1 as OpenAI's files, `train` or
/// `training` as axolotl's.
std::optional<bool> mark_of(const Json& message, std::size_t number) {
  std::optional<bool> mark;
  const auto refuse = [&](const char* name, const Json& value, const char* expected) {
    fail_input({.wrong = fmt::format("'{}' of message {} is not understood", name, number),
                .expected = expected,
                .got = shown(json_text(value), 40)});
  };
  for (const char* const name : {"weight", "train", "training"}) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) {
      continue;
    }
    const bool is_number = found->is_number() && std::string_view(name) == "weight";
    if (is_number ? *found != 0 && *found != 1 : !found->is_boolean()) {
      refuse(name, *found, is_number ? "0 or 1" : "true or false");
    }
    const bool own = is_number ? *found == 1 : found->get<bool>();
    if (mark && *mark != own) {
      refuse(name, *found, "the same as its other marks say");
    }
    mark = own;
  }
  for (const char* const name :
       {"mask", "masked", "loss", "loss_mask", "loss_weight", "calculate_loss", "trainable",
        "train_detail", "training_detail"}) {
    if (const auto found = message.find(name); found != message.end() && !found->is_null()) {
      refuse(name, *found, "'train': true or false, or 'weight': 0 or 1");
    }
  }
  return mark;
}

Message message_of(std::string_view written, std::size_t number) {
  Message message{.json = parse_json(written)};
  message.role = role_of(message.json, number);
  message.texts = texts_of(message.json, number);
  const std::optional<bool> mark = mark_of(message.json, number);
  if (mark.value_or(false) && message.role != Role::assistant) {
    fail_input({.wrong = fmt::format("message {} of the {} is marked to be learned", number,
                                     name_of_role(message.role)),
                .expected = "a mark of an answer",
                .advice = "remove it, or set data.train_on=all"});
  }
  message.trained = mark.value_or(true);
  return message;
}

/// The message as the template takes it.
std::string written_message(const Message& message, std::string_view written,
                            const TemplateContents& contents) {
  const auto role = static_cast<std::size_t>(message.role);
  const auto content = message.json.find("content");
  const bool joins =
      content != message.json.end() && content->is_array() && !contents.takes_parts[role];
  const bool divides =
      content != message.json.end() && content->is_string() && !contents.takes_texts[role];
  if (!joins && !divides) {
    return std::string(written);
  }
  std::string joined;
  for (const std::string& text : message.texts) {
    joined += text;
  }
  const Json own = joins ? Json(joined) : Json::array({{{"type", "text"}, {"text", joined}}});
  std::string all;
  for (const auto& [name, value] : members_as_written(written)) {
    all += fmt::format("{}{}:{}", all.empty() ? "" : ",", json_text(Json(name)),
                       name == "content" ? json_text(own) : std::string(value));
  }
  return "{" + all + "}";
}

/// A list, or the text of a JSON list; "null" where there is none.
std::string tools_of(std::string_view written) {
  const Json given = parse_json(written);
  const std::string text = given.is_string() ? given.get<std::string>() : std::string(written);
  const ParsedJson list = parse_json_object(
      fmt::format("{{\"tools\":{}}}", text.empty() ? "null" : text), record_limits);
  if (!list.problem.empty()) {
    fail_input({.wrong = "'tools' is a text that is not JSON: " + list.problem});
  }
  const Json& tools = list.value["tools"];
  const bool right =
      list.value.size() == 1 &&
      (tools.is_null() || (tools.is_array() && std::ranges::all_of(tools, [](const Json& tool) {
                             return tool.is_object();
                           })));
  if (!right) {
    fail_input({.wrong = "'tools' must be a list of objects"});
  }
  return text.empty() ? "null" : text;
}

/// The members of chat_template_kwargs, an object or the text of one.
std::map<std::string, std::string> further_variables(std::string_view written) {
  const Json given = parse_json(written);
  if (given.is_null()) {
    return {};
  }
  const std::string text = given.is_string() ? given.get<std::string>() : std::string(written);
  if (const ParsedJson object = parse_json_object(text, record_limits); !object.problem.empty()) {
    fail_input({.wrong = "'chat_template_kwargs': " + object.problem});
  }
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : members_as_written(text)) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
      fail_input({.wrong = fmt::format("'chat_template_kwargs' cannot set '{}'", name)});
    }
    variables[name] = std::string(value);
  }
  return variables;
}

}  // namespace

const char* name_of_role(Role role) {
  return role == Role::system      ? "system"
         : role == Role::user      ? "user"
         : role == Role::assistant ? "assistant"
                                   : "tool";
}

Role role_of(const Json& message, std::size_t number) {
  static const std::map<std::string, Role, std::less<>> roles = {
      {"system", Role::system},       {"developer", Role::system}, {"user", Role::user},
      {"assistant", Role::assistant}, {"tool", Role::tool},        {"ipython", Role::tool},
      {"function", Role::tool}};
  const bool has = message.is_object() && message.contains("role") && message["role"].is_string();
  const auto found = has ? roles.find(message["role"].get_ref<const std::string&>()) : roles.end();
  if (found == roles.end()) {
    fail_input({.wrong = fmt::format("message {} has no role that is known", number),
                .expected = "system, user, assistant or tool",
                .got = has ? shown(message["role"].get<std::string>(), 30) : "none"});
  }
  return found->second;
}

Conversation conversation_of(const WrittenMembers& record,
                             const std::vector<std::string_view>& messages,
                             const TemplateContents& contents) {
  if (messages.empty()) {
    fail_input({.wrong = "'messages' must be a list that is not empty"});
  }
  Conversation all;
  std::string list;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    all.messages.push_back(message_of(messages[i], i + 1));
    list += (i == 0 ? "" : ",") + written_message(all.messages.back(), messages[i], contents);
  }
  check_order(all.messages);
  std::map<std::string, std::string> variables;
  std::map<std::string, std::string> further;
  for (const auto& [name, value] : record) {
    const auto refused = refused_members().find(name);
    if (name == "messages" || name == "prompt" || name == "completion" || name == "chosen" ||
        name == "rejected") {
      continue;
    }
    if (name == "tools") {
      variables[name] = tools_of(value);
      all.tools = parse_json(variables[name]);
    } else if (name == "chat_template_kwargs") {
      further = further_variables(value);
    } else if (std::ranges::find(contents.members, name) != contents.members.end()) {
      variables[name] = std::string(value);
    } else if (refused != refused_members().end() && !says_nothing(parse_json(value))) {
      fail_input({.wrong = fmt::format("'{}' beside the messages is not supported", name),
                  .advice = refused->second});
    } else {
      all.unread.insert(name);
    }
  }
  for (const auto& [name, value] : further) {
    variables[name] = value;
  }
  all.text = "{\"messages\":[" + list + "]";
  for (const auto& [name, value] : variables) {
    all.text += fmt::format(",{}:{}", json_text(Json(name)), value);
  }
  all.text += "}";
  return all;
}

void for_each_text(const Json& value, const std::function<void(const std::string&)>& visit) {
  if (value.is_string()) {
    visit(value.get_ref<const std::string&>());
  } else if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      visit(name);
      for_each_text(member, visit);
    }
  } else if (value.is_array()) {
    for (const Json& element : value) {
      for_each_text(element, visit);
    }
  }
}

}  // namespace tessera::data
