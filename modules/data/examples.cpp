module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "text_checks.hpp"
module tessera.data;

import tessera.base;
import tessera.tokenize;

namespace tessera::data {
namespace {

using tokenize::TokenId;
using Json = nlohmann::json;
using Messages = nlohmann::ordered_json;

constexpr JsonLimits record_limits{.bytes = std::size_t{1} << 26, .values = 1'000'000, .depth = 64};

Json parsed(std::string_view record) {
  if (const std::size_t at = invalid_utf8(record); at != std::string_view::npos) {
    fail_input({.wrong = fmt::format("byte {} is 0x{:02X}, which is not UTF-8", at,
                                     static_cast<unsigned char>(record[at]))});
  }
  ParsedJson json = parse_json_object(record, record_limits);
  if (!json.problem.empty()) {
    fail_input({.wrong = json.problem});
  }
  return std::move(json.value);
}

RecordKind kind(const Json& record) {
  const bool messages = record.contains("messages");
  const bool completion = record.contains("prompt") || record.contains("completion");
  const bool text = record.contains("text");
  const bool preference = record.contains("chosen") || record.contains("rejected");
  if (preference && !messages && !text && !record.contains("completion")) {
    return RecordKind::preference;
  }
  if (preference || messages + completion + text != 1) {
    std::vector<std::string> names;
    for (const auto& [name, value] : record.items()) {
      names.push_back("'" + shown(name, 30) + "'");
    }
    constexpr std::size_t most = 8;
    names.resize(std::min(names.size(), most));
    fail_input({.wrong = "the record is of no kind",
                .expected = "'messages', 'prompt' and 'completion', 'text', or 'chosen' and "
                            "'rejected'",
                .got = names.empty() ? "no members" : join_words(names)});
  }
  if (messages) {
    return RecordKind::conversation;
  }
  if (text) {
    return RecordKind::text;
  }
  for (const char* const name : {"prompt", "completion"}) {
    if (!record.contains(name)) {
      fail_input({.wrong = fmt::format("'{}' is missing", name)});
    }
  }
  return record["prompt"].is_array() ? RecordKind::conversation : RecordKind::completion;
}

const std::string& text_member(const Json& record, const char* name) {
  const Json& value = record[name];
  if (!value.is_string()) {
    fail_input({.wrong = fmt::format("'{}' must be a text", name), .got = value.type_name()});
  }
  return value.get_ref<const std::string&>();
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
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

enum class Role : std::uint8_t { system, user, assistant, tool };

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

const char* name_of_role(Role role) {
  return role == Role::system      ? "system"
         : role == Role::user      ? "user"
         : role == Role::assistant ? "assistant"
                                   : "tool";
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

}  // namespace

std::string_view name_of(RecordKind kind) {
  return kind == RecordKind::conversation ? "messages"
         : kind == RecordKind::completion ? "prompt and completion"
         : kind == RecordKind::preference ? "chosen and rejected"
                                          : "text";
}

ExampleMaker::ExampleMaker(tokenize::OpenedTokenizer tokenizer,
                           std::shared_ptr<const ChatTemplate> chat, TrainOn train_on)
    : tokenizer_(std::move(tokenizer)), chat_(std::move(chat)), train_on_(train_on) {
  const tokenize::Tokenizer& t = *tokenizer_.tokenizer;
  const std::vector<TokenId> plain = t.encode("a", {.add_special = false});
  const std::vector<TokenId> all = t.encode("a");
  if (const auto at = std::ranges::search(all, plain); !at.empty()) {
    prefix_.assign(all.begin(), at.begin());
    suffix_.assign(at.end(), all.end());
  }
  if (suffix_.empty() && tokenizer_.special.eos) {
    suffix_.push_back(*tokenizer_.special.eos);
  }
  for (std::int64_t id = 0; id < t.vocab_size(); ++id) {
    const auto one = static_cast<TokenId>(id);
    if (t.is_special(one)) {
      const std::string text = t.token(one).value_or("");
      if (!text.empty() && special_beginnings_.find(text[0]) == std::string::npos) {
        special_beginnings_ += text[0];
      }
    }
  }
}

RecordKind ExampleMaker::kind_of(std::string_view record) { return kind(parsed(record)); }

std::string ExampleMaker::text_of(std::string_view record) {
  const Json json = parsed(record);
  if (const RecordKind own = kind(json); own != RecordKind::text) {
    fail_input({.wrong = "the record is of another kind than those before",
                .expected = "'text'",
                .got = std::string(name_of(own))});
  }
  const std::string& text = text_member(json, "text");
  if (text.empty()) {
    fail_input({.wrong = "'text' is empty"});
  }
  return text;
}

Example ExampleMaker::make(std::string_view record) const {
  const Json json = parsed(record);
  switch (kind(json)) {
    case RecordKind::conversation:
      break;
    case RecordKind::completion:
      return completion(text_member(json, "prompt"), text_member(json, "completion"), "completion");
    case RecordKind::text:
      return whole(text_of(record));
    case RecordKind::preference:
      fail_input({.wrong = "the record compares answers ('chosen' and 'rejected')",
                  .expected = "an answer to learn",
                  .advice = "set train.objective=dpo, or remove it"});
  }
  if (json.contains("messages")) {
    return conversation(record, 0);
  }
  nlohmann::ordered_json joined = parse_ordered_json(record);
  nlohmann::ordered_json messages = joined["prompt"];
  const nlohmann::ordered_json& answers = joined["completion"];
  if (!answers.is_array()) {
    fail_input({.wrong = "'completion' must be a list of messages, as 'prompt' is"});
  }
  const auto count = static_cast<std::int64_t>(messages.size());
  messages.insert(messages.end(), answers.begin(), answers.end());
  joined.erase("prompt");
  joined.erase("completion");
  joined["messages"] = std::move(messages);
  return conversation(json_text(joined), count);
}

namespace {

/// A list of messages, which is not empty.
const Messages& messages_member(const Messages& record, const char* name) {
  const Messages& list = record.at(name);
  if (!list.is_array() || list.empty()) {
    fail_input({.wrong = fmt::format("'{}' must be a list of messages that is not empty", name)});
  }
  return list;
}

/// A preference as two conversations with the same beginning, of `prompt` messages.
struct Conversations {
  std::string chosen;
  std::string rejected;
  std::int64_t prompt = 0;
};

/// Of lists of messages: with `prompt`, or with the prompt in both.
Conversations conversations_of(std::string_view record) {
  Messages rest = parse_ordered_json(record);
  Messages chosen = messages_member(rest, "chosen");
  Messages rejected = messages_member(rest, "rejected");
  if (chosen == rejected) {
    fail_input({.wrong = "'chosen' and 'rejected' are the same"});
  }
  Conversations all;
  if (rest.contains("prompt")) {
    const Messages& prompt = messages_member(rest, "prompt");
    all.prompt = std::ssize(prompt);
    chosen.insert(chosen.begin(), prompt.begin(), prompt.end());
    rejected.insert(rejected.begin(), prompt.begin(), prompt.end());
  } else {
    const std::size_t most = std::min(chosen.size(), rejected.size());
    while (all.prompt < static_cast<std::int64_t>(most) &&
           chosen[static_cast<std::size_t>(all.prompt)] ==
               rejected[static_cast<std::size_t>(all.prompt)]) {
      ++all.prompt;
    }
    if (all.prompt == 0) {
      fail_input({.wrong = "'chosen' and 'rejected' do not begin with the same messages, so they "
                           "are not answers to one prompt",
                  .advice = "give both the prompt's messages, or write them as 'prompt'"});
    }
  }
  for (const auto& [name, messages] :
       {std::pair("chosen", &chosen), std::pair("rejected", &rejected)}) {
    const std::size_t at = static_cast<std::size_t>(all.prompt);
    if (at >= messages->size() || role_of((*messages)[at], at + 1) != Role::assistant) {
      fail_input({.wrong = fmt::format("'{}' does not go on with an answer of the assistant where "
                                       "the two differ",
                                       name),
                  .got = at >= messages->size() ? "its end"
                                                : name_of_role(role_of((*messages)[at], at + 1))});
    }
  }
  for (const char* const name : {"chosen", "rejected", "prompt"}) {
    rest.erase(name);
  }
  rest["messages"] = std::move(chosen);
  all.chosen = json_text(rest);
  rest["messages"] = std::move(rejected);
  all.rejected = json_text(rest);
  return all;
}

/// An error about one of the two answers names it.
Example named(const char* name, const std::function<Example()>& make) {
  try {
    return make();
  } catch (const Error& error) {
    ErrorFields fields = error.fields();
    fields.wrong = fmt::format("'{}': {}", name, fields.wrong);
    throw Error(std::move(fields), error.kind());
  }
}

}  // namespace

Preference ExampleMaker::make_preference(std::string_view record) const {
  const Json json = parsed(record);
  if (const RecordKind own = kind(json); own != RecordKind::preference) {
    fail_input({.wrong = "the record does not compare answers",
                .expected = "'prompt', 'chosen' and 'rejected'",
                .got = fmt::format("'{}'", name_of(own)),
                .advice = "set train.objective=next_token, or give two answers"});
  }
  for (const char* const name : {"chosen", "rejected"}) {
    if (!json.contains(name)) {
      fail_input({.wrong = fmt::format("'{}' is missing", name)});
    }
  }
  if (json["chosen"].is_array()) {
    const Conversations both = conversations_of(record);
    return {
        .chosen = named("chosen", [&] { return conversation(both.chosen, both.prompt); }),
        .rejected = named("rejected", [&] { return conversation(both.rejected, both.prompt); })};
  }
  if (!json.contains("prompt")) {
    fail_input({.wrong = "'prompt' is missing",
                .advice = "only conversations have their prompt in 'chosen' and 'rejected'"});
  }
  const std::string& prompt = text_member(json, "prompt");
  const std::string& chosen = text_member(json, "chosen");
  const std::string& rejected = text_member(json, "rejected");
  if (chosen == rejected) {
    fail_input({.wrong = "'chosen' and 'rejected' are the same"});
  }
  return {.chosen = completion(prompt, chosen, "chosen"),
          .rejected = completion(prompt, rejected, "rejected")};
}

void ExampleMaker::check_plain(std::string_view text, const std::string& what) const {
  if (text.find_first_of(special_beginnings_) == std::string_view::npos) {
    return;
  }
  const tokenize::Tokenizer& t = *tokenizer_.tokenizer;
  for (const TokenId id : t.encode(text, {.add_special = false})) {
    if (t.is_special(id)) {
      fail_input({.wrong = fmt::format("{} contains the special token '{}'", what,
                                       shown(t.token(id).value_or(""), 40)),
                  .advice = "remove it: the template writes special tokens"});
    }
  }
}

Example ExampleMaker::conversation(std::string_view record, std::int64_t first_trained) const {
  if (!chat_) {
    fail_input({.wrong = "the tokenizer has no chat template, so conversations have no text",
                .advice = "set data.chat_template"});
  }
  const Json json = parsed(record);
  const Json& messages = json["messages"];
  if (!messages.is_array() || messages.empty()) {
    fail_input({.wrong = "'messages' must be a list that is not empty"});
  }
  std::optional<Role> before;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Role role = role_of(messages[i], i + 1);
    if (!may_follow(before, role)) {
      fail_input({.wrong = fmt::format("message {} is of the {} {}", i + 1, name_of_role(role),
                                       before ? fmt::format("after the {}", name_of_role(*before))
                                              : "at the beginning"),
                  .expected = "user and assistant by turns, after at most one of the system"});
    }
    before = role;
    const std::vector<std::string> texts = texts_of(messages[i], i + 1);
    for (const std::string& text : texts) {
      check_plain(text, fmt::format("message {}", i + 1));
    }
    const bool calls = messages[i].contains("tool_calls") && !messages[i]["tool_calls"].empty();
    if (role == Role::assistant && !calls && std::ranges::all_of(texts, is_blank)) {
      fail_input({.wrong = fmt::format("the answer of message {} is empty", i + 1)});
    }
  }
  if (before != Role::assistant) {
    fail_input({.wrong = fmt::format("the conversation ends with a message of the {}",
                                     name_of_role(*before)),
                .expected = "an answer of the assistant"});
  }
  const bool all = train_on_ == TrainOn::all;
  const RenderedChat chat =
      all ? RenderedChat{chat_->render(record, false), {}} : chat_->render_with_answers(record);
  const tokenize::Encoding tokens = tokenizer_.tokenizer->encode_with_offsets(
      chat.text, {.add_special = false, .parse_special = true});
  Example out;
  out.ids = tokens.ids;
  out.trained.assign(out.ids.size(), all ? 1 : 0);
  check_special(chat.text, out.ids);
  if (!all) {
    train_answers(chat, first_trained, tokens, out);
  }
  return out;
}

bool ExampleMaker::ends_answers(TokenId id) const {
  return std::ranges::find(tokenizer_.special.stop, id) != tokenizer_.special.stop.end();
}

void ExampleMaker::train_answers(const RenderedChat& chat, std::int64_t first_trained,
                                 const tokenize::Encoding& tokens, Example& out) const {
  for (std::size_t a = 0; a < chat.answers.size(); ++a) {
    const AnswerPlace& answer = chat.answers[a];
    if (answer.message < first_trained) {
      continue;
    }
    // A template without marks: an answer is what the model has to generate, up to the first token
    // that ends it.
    const std::int64_t end = answer.end                    ? *answer.end
                             : a + 1 < chat.answers.size() ? chat.answers[a + 1].begin
                                                           : std::ssize(chat.text);
    bool stopped = false;
    for (std::size_t i = 0; i < out.ids.size(); ++i) {
      const tokenize::ByteRange& bytes = tokens.offsets[i];
      if (bytes.begin < answer.begin && bytes.end > answer.begin) {
        ++out.joined;
      }
      if (bytes.begin < answer.begin || bytes.begin >= end || (stopped && !answer.end)) {
        continue;
      }
      out.trained[i] = 1;
      stopped = stopped || ends_answers(out.ids[i]);
    }
    if (!stopped) {
      fail_input({.wrong = fmt::format("the answer of message {} does not end with a token that "
                                       "ends generated texts, so the model would not learn to stop",
                                       answer.message + 1),
                  .expected = fmt::format("{} such tokens, of tokenizer_config.json and "
                                          "generation_config.json",
                                          tokenizer_.special.stop.size()),
                  .advice = "name the template's token there as eos"});
    }
  }
}

void ExampleMaker::check_special(const std::string& text, std::span<const TokenId> ids) const {
  const tokenize::Tokenizer& t = *tokenizer_.tokenizer;
  const auto& bos = tokenizer_.special.bos;
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) {
    fail_input({.wrong = "the text begins with two tokens for its beginning (bos)",
                .advice = "write it once in the template"});
  }
  // <|im_end|> and its like are special tokens, or the model reads their letters.
  for (std::size_t at = text.find("<|"); at != std::string::npos; at = text.find("<|", at + 2)) {
    const std::size_t end = text.find("|>", at);
    constexpr std::size_t longest = 40;
    if (end == std::string::npos || end - at > longest || text.find_first_of(" \n", at) < end) {
      continue;
    }
    const std::string token = text.substr(at, end + 2 - at);
    if (!t.id(token)) {
      fail_input({.wrong = fmt::format("the text contains '{}', which the tokenizer does not have "
                                       "as a token",
                                       shown(token)),
                  .advice = "use the template and the tokenizer of one model"});
    }
  }
}

Example ExampleMaker::completion(const std::string& prompt, const std::string& answer,
                                 const char* name) const {
  if (is_blank(answer)) {
    fail_input({.wrong = fmt::format("'{}' is empty", name)});
  }
  if (prompt.empty()) {
    fail_input({.wrong = "'prompt' is empty", .advice = "use 'text' for texts without a prompt"});
  }
  const tokenize::Encoding tokens = tokenizer_.tokenizer->encode_with_offsets(
      prompt + answer, {.add_special = false, .parse_special = false});
  Example out;
  out.ids.assign(prefix_.begin(), prefix_.end());
  out.trained.assign(prefix_.size(), 0);
  const std::int64_t begin = std::ssize(prompt);
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    const tokenize::ByteRange& bytes = tokens.offsets[i];
    out.joined += bytes.begin < begin && bytes.end > begin ? 1 : 0;
    out.ids.push_back(tokens.ids[i]);
    out.trained.push_back(train_on_ == TrainOn::all || bytes.begin >= begin ? 1 : 0);
  }
  out.ids.insert(out.ids.end(), suffix_.begin(), suffix_.end());
  out.trained.resize(out.ids.size(), 1);
  return out;
}

Example ExampleMaker::whole(const std::string& text) const {
  Example out;
  out.ids.assign(prefix_.begin(), prefix_.end());
  const std::vector<TokenId> own =
      tokenizer_.tokenizer->encode(text, {.add_special = false, .parse_special = false});
  out.ids.insert(out.ids.end(), own.begin(), own.end());
  out.ids.insert(out.ids.end(), suffix_.begin(), suffix_.end());
  out.trained.assign(out.ids.size(), 1);
  return out;
}

std::string template_variables(const tokenize::OpenedTokenizer& tokenizer, std::string_view more) {
  Json variables = Json::object();
  const tokenize::SpecialTokens& special = tokenizer.special;
  const std::pair<const char*, std::optional<TokenId>> roles[] = {{"bos_token", special.bos},
                                                                  {"eos_token", special.eos},
                                                                  {"pad_token", special.pad},
                                                                  {"unk_token", special.unknown}};
  for (const auto& [name, id] : roles) {
    if (id) {
      variables[name] = tokenizer.tokenizer->token(*id).value_or("");
    }
  }
  variables.update(parse_json(more));
  return json_text(variables);
}

}  // namespace tessera::data
