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

std::string as_json(std::span<const ChatMessage> messages, const std::set<std::string>& of_parts) {
  using Json = nlohmann::ordered_json;
  Json all = Json::array();
  for (const ChatMessage& message : messages) {
    const Json content = of_parts.contains(message.role)
                             ? Json::array({Json{{"type", "text"}, {"text", message.content}}})
                             : Json(message.content);
    all.push_back({{"role", message.role}, {"content", content}});
  }
  return json_text(nlohmann::ordered_json{{"messages", all}});
}

/// Error (input): a user could write what only the template writes.
void check_plain(const data::TextEncoder& encoder, const ChatMessage& message) {
  if (const auto id = encoder.special_in(message.content)) {
    fail_input(
        {.thing = "chat",
         .wrong = fmt::format("the message of the {} contains the special token '{}'",
                              shown(message.role, 30),
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
      end_tokens_(find_end()) {}

std::string ChatFormat::rendered(std::span<const ChatMessage> messages,
                                 bool add_generation_prompt) const {
  for (const ChatMessage& message : messages) {
    StreamedText text({});
    if (text.add(message.content) + text.finish() != message.content) {
      fail_input(
          {.thing = "chat",
           .wrong = fmt::format("the message of the {} is not UTF-8", shown(message.role, 30))});
    }
  }
  return template_->render(as_json(messages, of_parts_), add_generation_prompt);
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

std::vector<std::int64_t> ChatFormat::prompt(std::span<const ChatMessage> messages) const {
  const tokenize::Tokenizer& tokenizer = *model_.tokenizer().tokenizer;
  const std::string text = rendered(messages, true);
  for (const ChatMessage& message : messages) {
    if (message.role != "assistant") {
      check_plain(model_.encoder(), message);
    }
  }
  const auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = true});
  return {ids.begin(), ids.end()};
}

Chat::Chat(const TextModel& model, const std::string& template_file, GenerationOptions options)
    : model_(model),
      format_(model, template_file),
      engine_(model.ranks(), model.shape().vocab),
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
