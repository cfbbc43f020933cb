module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.tokenize;
import tessera.data;
import tessera.hub;

namespace tessera::text {
namespace {

/// Options with the time that templates' strftime_now reads, unless they have one: those who write
/// now want the date of the day.
std::string with_time(const std::string& options) {
  nlohmann::ordered_json all = parse_ordered_json(options);
  if (!all.contains("now")) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    all["now"] =
        fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", local.tm_year + 1900, local.tm_mon + 1,
                    local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec);
  }
  return json_text(all);
}

std::shared_ptr<const data::ChatTemplate> needed_template(const TextModel& model,
                                                          const std::string& file) {
  auto chat = chat_template_of(model, file);
  if (!chat) {
    fail_input({.thing = model.path(),
                .wrong = "the model's tokenizer has no chat template",
                .advice = "name a file with one (--chat-template), or use 'tessera generate'"});
  }
  return chat;
}

/// Roles whose contents the template takes as lists of parts alone.
std::set<std::string> roles_of_parts(const data::ChatTemplate& chat) {
  std::set<std::string> roles;
  for (const char* const role : {"system", "user", "assistant"}) {
    if (!chat.content_forms(role).texts) {
      roles.insert(role);
    }
  }
  return roles;
}

using Json = nlohmann::ordered_json;

/// The members of a message besides its content. Clients may write arguments of calls as texts; a
/// template takes them as objects or as texts.
Json members_of(const ChatMessage& message, bool arguments_as_text) {
  Json members = parse_ordered_json(message.members);
  const auto calls = members.find("tool_calls");
  if (calls == members.end()) {
    return members;
  }
  for (Json& call : *calls) {
    Json& arguments = call["function"]["arguments"];
    if (arguments_as_text && !arguments.is_string()) {
      arguments = json_text(arguments);
    } else if (!arguments_as_text && arguments.is_string()) {
      arguments = parse_ordered_json(arguments.get<std::string>());
    }
  }
  return members;
}

std::string as_json(std::span<const ChatMessage> messages, const std::set<std::string>& of_parts,
                    const std::string& tools, bool arguments_as_text) {
  Json all = Json::array();
  for (const ChatMessage& message : messages) {
    const Json content = of_parts.contains(message.role)
                             ? Json::array({Json{{"type", "text"}, {"text", message.content}}})
                             : Json(message.content);
    all.push_back({{"role", message.role}, {"content", content}});
    if (!message.members.empty()) {
      all.back().update(members_of(message, arguments_as_text));
    }
  }
  Json conversation = {{"messages", all}};
  if (!tools.empty()) {
    conversation["tools"] = parse_ordered_json("{\"tools\":" + tools + "}")["tools"];
  }
  return json_text(conversation);
}

/// Error (input): a user could write what only the template writes.
void check_plain(const data::TextEncoder& encoder, const std::string& text,
                 const std::string& whose) {
  if (const auto id = encoder.special_in(text)) {
    fail_input(
        {.thing = "chat",
         .wrong = fmt::format("{} the special token '{}'", whose,
                              shown(encoder.tokenizer().tokenizer->token(*id).value_or(""), 40)),
         .advice = "remove it: the template writes special tokens"});
  }
}

}  // namespace

std::shared_ptr<const data::ChatTemplate> chat_template_of(const TextModel& model,
                                                           const std::string& file) {
  hub::ModelTokenizer texts = model.texts();
  if (!file.empty()) {
    hub::set_template(texts, file);
  }
  texts.template_options = with_time(texts.template_options);
  return chat_template_of(texts);
}

ChatFormat::ChatFormat(const TextModel& model, const std::string& file)
    : model_(model),
      template_(needed_template(model, file)),
      of_parts_(roles_of_parts(*template_)),
      end_tokens_(find_end()) {
  find_tool_calls();
  add_call_end();
}

/// In answers of messages, the one with a call is the last.
void ChatFormat::add_call_end() {
  const ToolCallForm* const form = answer_form();
  const auto* const channels = form == nullptr ? nullptr : std::get_if<ChannelCalls>(&form->calls);
  if (channels == nullptr) {
    return;
  }
  const tokenize::Tokenizer& tokenizer = *model_.tokenizer().tokenizer;
  const auto ids = tokenizer.encode(channels->call_end, {.add_special = false});
  if (ids.size() == 1 && tokenizer.is_special(ids[0])) {
    end_tokens_.push_back(ids[0]);
  }
}

std::string ChatFormat::rendered(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                 const std::string& tools, bool arguments_as_text) const {
  for (const ChatMessage& message : messages) {
    StreamedText text({});
    if (text.add(message.content) + text.finish() != message.content) {
      fail_input(
          {.thing = "chat",
           .wrong = fmt::format("the message of the {} is not UTF-8", shown(message.role, 30))});
    }
  }
  return template_->render(as_json(messages, of_parts_, tools, arguments_as_text),
                           add_generation_prompt);
}

std::vector<std::int64_t> ChatFormat::find_end() const {
  const ChatMessage question{"user", "a"};
  const std::string answer = "answer";
  const ChatMessage both[] = {question, {"assistant", answer}};
  std::string whole;
  std::string before;
  try {
    before = rendered(std::span(&question, 1), true);
    whole = rendered(both, false);
  } catch (const Error&) {
    return {};  // it wants other conversations: what it refuses is said when one is there
  }
  if (!whole.starts_with(before)) {
    return {};
  }
  const std::size_t end = whole.find(answer, before.size());
  const tokenize::Tokenizer& tokenizer = *model_.tokenizer().tokenizer;
  const auto behind =
      std::string_view(whole).substr(end == std::string::npos ? whole.size() : end + answer.size());
  for (const tokenize::TokenId id : tokenizer.encode(behind, {.add_special = false})) {
    if (tokenizer.is_special(id)) {
      return {id};
    }
  }
  return {};
}

std::string ChatFormat::text(std::span<const ChatMessage> messages) const {
  return rendered(messages, true);
}

/// How a call is written is seen in a conversation with one: the form whose reader finds it again.
void ChatFormat::find_tool_calls() {
  const std::string question = "Does it rain in Rome?";
  const Tool tool{
      .name = "weather",
      .parameters =
          R"({"type":"object","properties":{"place":{"type":"string","description":"its name"}}})"};
  const std::string tools =
      R"([{"type":"function","function":{"name":"weather","description":"of a place","parameters":)" +
      tool.parameters + "}}]";
  const std::string object = R"({"place": "Rome"})";
  for (const bool as_text : {false, true}) {
    const ChatMessage both[] = {
        {"user", question},
        {"assistant", "",
         R"({"tool_calls":[{"id":"call00001","type":"function","function":{"name":"weather",)"
         R"("arguments":)" +
             object + "}}]}"}};
    std::string whole;
    try {
      whole = rendered(both, false, tools, as_text);
      if (rendered(std::span(both, 1), true, tools).find("weather") == std::string::npos) {
        return;  // it does not write the tools
      }
    } catch (const Error&) {
      continue;  // it takes arguments in the other form, or no calls
    }
    const std::size_t at = whole.rfind(question);
    const std::string after = whole.substr(at == std::string::npos ? whole.size() : at);
    for (const ToolCallForm& form : tool_call_forms()) {
      ToolCallReader reader(form, std::span(&tool, 1));
      const auto first = reader.add(form.answer_in(after));
      const auto last = reader.finish();
      const auto& calls = first.calls.empty() ? last.calls : first.calls;
      const auto same = [&](const std::string& text) {
        return parse_json(text, false) == parse_json(object);
      };
      if (calls.size() == 1 && calls[0].name == "weather" && same(calls[0].arguments)) {
        tool_calls_ = form;
        tool_calls_->arguments_as_text = as_text;
        return;
      }
    }
  }
}

const ToolCallForm& ChatFormat::tool_calls() const {
  if (!tool_calls_) {
    fail_input({.thing = "tools",
                .wrong = "the model's chat template does not write tools and calls of them in a "
                         "form that is known",
                .advice = "leave them out, or name another template (--chat-template)"});
  }
  return *tool_calls_;
}

std::vector<std::int64_t> ChatFormat::tool_call_tokens() const {
  const ToolCallForm& form = tool_calls();
  const tokenize::Tokenizer& tokenizer = *model_.tokenizer().tokenizer;
  std::set<std::int64_t> special;
  for (const std::string& mark : form.marks()) {
    for (const tokenize::TokenId id : tokenizer.encode(mark, {.add_special = false})) {
      if (tokenizer.is_special(id) && !model_.ends_at(id) &&
          std::ranges::find(end_tokens_, id) == end_tokens_.end()) {
        special.insert(id);
      }
    }
  }
  return {special.begin(), special.end()};
}

std::vector<std::int64_t> ChatFormat::prompt(std::span<const ChatMessage> messages,
                                             const std::string& tools) const {
  const tokenize::Tokenizer& tokenizer = *model_.tokenizer().tokenizer;
  const bool calls = !tools.empty() || std::ranges::any_of(messages, [](const ChatMessage& one) {
    return !one.members.empty() &&
           (one.role == "tool" || parse_ordered_json(one.members).contains("tool_calls"));
  });
  const std::string text = rendered(messages, true, tools, calls && tool_calls().arguments_as_text);
  for (const ChatMessage& message : messages) {
    if (message.role != "assistant") {
      check_plain(model_.encoder(), message.content,
                  fmt::format("the message of the {} contains", shown(message.role, 30)));
    }
  }
  check_plain(model_.encoder(), tools, "the tools contain");
  const auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = true});
  return {ids.begin(), ids.end()};
}

Chat::Chat(const TextModel& model, const std::string& template_file, GenerationOptions options,
           const EngineOptions& engine)
    : model_(model),
      format_(model, template_file),
      engine_(model.ranks(), model.shape().vocab, engine),
      options_(std::move(options)) {
  options_.end_tokens = format_.end_tokens();
}

void Chat::reset() {
  std::erase_if(messages_, [](const ChatMessage& message) { return message.role != "system"; });
}

void Chat::set_system(const std::string& text) {
  messages_.clear();
  if (!text.empty()) {
    messages_.push_back({"system", text});
  }
}

GeneratedText Chat::answer(const std::string& question, const TextReceiver& receive) {
  std::vector<ChatMessage> longer = messages_;
  longer.push_back({"user", question});
  const std::vector<std::int64_t> prompt = format_.prompt(longer);
  GenerationOptions options = options_;
  options.seed += messages_.size();  // another answer to a question that is repeated
  GeneratedText text = generate(model_, engine_, std::span(&prompt, 1), options, receive).at(0);
  longer.push_back({"assistant", text.text});
  messages_ = std::move(longer);
  return text;
}

}  // namespace tessera::text
