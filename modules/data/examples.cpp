module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "contents.hpp"
#include "conversations.hpp"
#include "json_parts.hpp"
#include "text_checks.hpp"
module tessera.data;

import tessera.base;
import tessera.tokenize;
import :records;
import :token_rows;

namespace tessera::data {
namespace {

using tokenize::TokenId;
using Json = nlohmann::json;
using Written = std::vector<std::string_view>;  // messages

[[noreturn]] void refuse_kind(const Json& record) {
  std::vector<std::string> names;
  for (const auto& [name, value] : record.items()) {
    names.push_back("'" + shown(name, 30) + "'");
  }
  constexpr std::size_t most = 8;
  names.resize(std::min(names.size(), most));
  fail_input({.wrong = "the record is of no kind",
              .expected = "'messages', 'prompt' and 'completion', 'text', 'chosen' and "
                          "'rejected', or 'input_ids'",
              .got = names.empty() ? "no members" : join_words(names)});
}

RecordKind kind(const Json& record, bool compares) {
  const bool messages = record.contains("messages");
  const bool text = record.contains("text");
  const bool completion = record.contains("completion");
  const bool answers = record.contains("chosen") || record.contains("rejected");
  const bool tokens = record.contains("input_ids");
  if (text + completion + tokens + (messages || answers) > 1) {
    refuse_kind(record);
  }
  if (tokens) {
    return RecordKind::tokens;
  }
  if (answers && (compares || !messages)) {
    return RecordKind::preference;
  }
  if (messages) {
    return RecordKind::conversation;
  }
  if (text && !record.contains("prompt")) {
    return RecordKind::text;
  }
  if (text || (!completion && !record.contains("prompt"))) {
    refuse_kind(record);
  }
  for (const char* const name : {"prompt", "completion"}) {
    if (!record.contains(name)) {
      fail_input({.wrong = fmt::format("'{}' is missing", name)});
    }
  }
  return record["prompt"].is_array() ? RecordKind::conversation : RecordKind::completion;
}

/// The elements of a list of messages.
Written messages_member(const WrittenMembers& record, std::string_view name) {
  const auto found =
      std::ranges::find_if(record, [&](const auto& member) { return member.first == name; });
  Written messages;
  if (found != record.end() && found->second.starts_with('[')) {
    messages = elements_as_written(found->second);
  }
  if (messages.empty()) {
    fail_input({.wrong = fmt::format("'{}' must be a list of messages that is not empty", name)});
  }
  return messages;
}

/// Error (input): a text `prompt` beside messages is none of them, so it would be left out.
void check_prompt(const Json& record, const Written& messages) {
  const auto prompt = record.find("prompt");
  if (prompt == record.end() || prompt->is_null()) {
    return;
  }
  const std::string& text = text_member(record, "prompt");
  const bool said = std::ranges::any_of(messages, [&](std::string_view written) {
    bool found = false;
    for_each_text(parse_json(written), [&](const std::string& own) {
      found = found || own.find(text) != std::string::npos;
    });
    return found;
  });
  if (!said) {
    fail_input({.wrong = "'prompt' is a text that no message beside it contains",
                .advice = "remove 'prompt', or write it as a message"});
  }
}

/// The parts of a text that look like special tokens: <|im_end|>.
std::vector<std::string> names_in_bars(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t at = text.find("<|"); at != std::string_view::npos;
       at = text.find("<|", at + 2)) {
    constexpr std::size_t longest = 40;
    const std::string_view near = text.substr(at, longest + 2);
    const std::size_t end = near.find("|>");
    if (end != std::string_view::npos && near.find_first_of(" \n") > end) {
      names.emplace_back(near.substr(0, end + 2));
    }
  }
  return names;
}

}  // namespace

std::string_view name_of(RecordKind kind) {
  return kind == RecordKind::conversation ? "messages"
         : kind == RecordKind::completion ? "prompt and completion"
         : kind == RecordKind::preference ? "chosen and rejected"
         : kind == RecordKind::tokens     ? "input_ids"
                                          : "text";
}

const std::vector<std::string>& dropped_content_kinds() { return dropped_kinds(); }

struct ExampleMaker::State {
  TextEncoder texts;
  std::shared_ptr<const ChatTemplate> chat;
  TrainOn train_on = TrainOn::answers;
  ExampleOptions options;
  TemplateContents contents;

  Example conversation(const WrittenMembers& record, const Written& messages,
                       std::size_t first_trained) const;
  Example completion(const std::string& prompt, const std::string& answer, const char* name) const;
  Example whole(const std::string& text) const;
  void train_answers(const Conversation& conversation, const RenderedChat& rendered,
                     std::size_t first_trained, const tokenize::Encoding& tokens,
                     Example& out) const;
  void check_written(const Conversation& conversation, const RenderedChat& rendered,
                     std::size_t first_trained, const tokenize::Encoding& tokens,
                     Example& out) const;
  std::optional<std::size_t> end_of_answer(const RenderedChat& rendered, std::size_t answer,
                                           const tokenize::Encoding& tokens) const;
  void check_special(const Conversation& conversation, const std::string& text,
                     std::span<const TokenId> ids) const;
  void check_plain(const Conversation& conversation) const;
  /// Error (input): the text contains a special token, and these are refused.
  void check_special(const std::string& text) const;
  bool ends_answers(TokenId id) const {
    const auto& stop = texts.tokenizer().special.stop;
    return std::ranges::find(stop, id) != stop.end();
  }
};

ExampleMaker::ExampleMaker(tokenize::OpenedTokenizer tokenizer,
                           std::shared_ptr<const ChatTemplate> chat, TrainOn train_on,
                           ExampleOptions options) {
  TextEncoder texts(std::move(tokenizer), options.special);
  TemplateContents contents{.members = options.template_members};
  if (chat) {
    for (std::size_t role = 0; role < role_count; ++role) {
      const ContentForms forms = chat->content_forms(name_of_role(static_cast<Role>(role)));
      contents.takes_parts[role] = forms.parts;
      contents.takes_texts[role] = forms.texts;
    }
  }
  state_ = std::make_shared<const State>(
      State{std::move(texts), std::move(chat), train_on, std::move(options), std::move(contents)});
}

const TextEncoder& ExampleMaker::texts() const { return state_->texts; }

std::string ExampleMaker::identity() const {
  const ExampleOptions& options = state_->options;
  return options.identity.empty()
             ? ""
             : fmt::format("{} {} {} [{}] [{}]", options.identity,
                           static_cast<int>(state_->train_on), static_cast<int>(options.special),
                           fmt::join(options.allow_dropped, ","),
                           fmt::join(options.template_members, ","));
}

RecordKind ExampleMaker::kind_of(std::string_view record, bool compares) {
  return kind(parsed_record(record), compares);
}

std::string ExampleMaker::text_of(std::string_view record) {
  const Json json = parsed_record(record);
  if (const RecordKind own = kind(json, false); own != RecordKind::text) {
    fail_input({.wrong = "the record is of another kind than those before",
                .expected = "'text'",
                .got = fmt::format("'{}'", name_of(own))});
  }
  const std::string& text = text_member(json, "text");
  if (text.empty()) {
    fail_input({.wrong = "'text' is empty"});
  }
  return text;
}

Example ExampleMaker::make(std::string_view record) const {
  const Json json = parsed_record(record);
  Example out;
  switch (kind(json, false)) {
    case RecordKind::conversation:
      break;
    case RecordKind::completion:
      out = state_->completion(text_member(json, "prompt"), text_member(json, "completion"),
                               "completion");
      out.unread = unread_members(json, {"prompt", "completion"});
      return out;
    case RecordKind::text:
      out = state_->whole(text_of(record));
      out.unread = unread_members(json, {"text"});
      return out;
    case RecordKind::tokens:
      return example_of_tokens(json, texts().tokenizer().tokenizer->vocab_size(), state_->train_on);
    case RecordKind::preference:
      fail_input({.wrong = "the record compares answers ('chosen' and 'rejected')",
                  .expected = "an answer to learn",
                  .advice = "set train.objective=dpo, or remove it"});
  }
  const WrittenMembers members = members_as_written(record);
  if (json.contains("messages")) {
    const Written messages = messages_member(members, "messages");
    check_prompt(json, messages);
    return state_->conversation(members, messages, 0);
  }
  if (!json["completion"].is_array()) {
    fail_input({.wrong = "'completion' must be a list of messages, as 'prompt' is"});
  }
  Written messages = messages_member(members, "prompt");
  const std::size_t count = messages.size();
  const Written answers = messages_member(members, "completion");
  messages.insert(messages.end(), answers.begin(), answers.end());
  return state_->conversation(members, messages, count);
}

namespace {

/// A preference as two conversations with the same beginning, of `prompt` messages.
struct Conversations {
  Written chosen;
  Written rejected;
  std::size_t prompt = 0;
};

/// Of lists of messages: with `prompt`, or with the prompt in both.
Conversations conversations_of(const Json& record, const WrittenMembers& members) {
  Conversations all{.chosen = messages_member(members, "chosen"),
                    .rejected = messages_member(members, "rejected")};
  if (std::ranges::equal(all.chosen, all.rejected, same_value)) {
    fail_input({.wrong = "'chosen' and 'rejected' are the same"});
  }
  if (record.contains("prompt") && record["prompt"].is_array()) {
    const Written prompt = messages_member(members, "prompt");
    all.prompt = prompt.size();
    all.chosen.insert(all.chosen.begin(), prompt.begin(), prompt.end());
    all.rejected.insert(all.rejected.begin(), prompt.begin(), prompt.end());
  } else {
    const std::size_t most = std::min(all.chosen.size(), all.rejected.size());
    while (all.prompt < most && same_value(all.chosen[all.prompt], all.rejected[all.prompt])) {
      ++all.prompt;
    }
    if (all.prompt == 0) {
      fail_input({.wrong = "'chosen' and 'rejected' do not begin with the same messages, so they "
                           "are not answers to one prompt",
                  .advice = "give both the prompt's messages, or write them as 'prompt'"});
    }
    check_prompt(record, Written(all.chosen.begin(),
                                 all.chosen.begin() + static_cast<std::ptrdiff_t>(all.prompt)));
  }
  for (const auto& [name, messages] :
       {std::pair("chosen", &all.chosen), std::pair("rejected", &all.rejected)}) {
    const std::size_t at = all.prompt;
    const auto role = at < messages->size()
                          ? std::optional(role_of(parse_json((*messages)[at]), at + 1))
                          : std::nullopt;
    if (role != Role::assistant) {
      fail_input({.wrong = fmt::format("'{}' does not go on with an answer of the assistant where "
                                       "the two differ",
                                       name),
                  .got = role ? name_of_role(*role) : "its end"});
    }
  }
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
  const Json json = parsed_record(record);
  if (const RecordKind own = kind(json, true); own != RecordKind::preference) {
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
    const WrittenMembers members = members_as_written(record);
    const Conversations both = conversations_of(json, members);
    const auto of = [&](const char* name, const Written& messages) {
      return named(name, [&] { return state_->conversation(members, messages, both.prompt); });
    };
    return {.chosen = of("chosen", both.chosen), .rejected = of("rejected", both.rejected)};
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
  Preference both{.chosen = state_->completion(prompt, chosen, "chosen"),
                  .rejected = state_->completion(prompt, rejected, "rejected")};
  both.chosen.unread = unread_members(json, {"prompt", "chosen", "rejected"});
  return both;
}

LabelledText ExampleMaker::make_labelled(std::string_view record, std::int64_t longest) const {
  const Json json = parsed_record(record);
  require_labelled(json, "text");
  LabelledText out;
  out.label = label_member(json);
  const std::string& text = text_member(json, "text");
  if (text.empty()) {
    fail_input({.wrong = "'text' is empty"});
  }
  const TextEncoder& texts = state_->texts;
  state_->check_special(text);
  tokenize::Encoding encoded = texts.tokenizer().tokenizer->encode_with_offsets(
      text, {.parse_special = texts.special() == SpecialText::read});
  out.whole = std::ssize(encoded.ids);
  shorten(encoded, longest);
  out.example.ids = std::move(encoded.ids);
  out.example.trained.assign(out.example.ids.size(), 0);
  out.example.unread = unread_members(json, {"text", "label"});
  return out;
}

namespace {

/// The words of a record, and where each begins in the text of them all.
struct Words {
  std::string text;
  std::vector<tokenize::ByteRange> places;
  std::vector<std::string> labels;  // "": not told
};

Words words_of(const Json& record) {
  const Json& words = record["words"];
  const Json& labels = record["labels"];
  if (!words.is_array() || !labels.is_array() || words.empty() || words.size() != labels.size()) {
    fail_input({.wrong = "'words' and 'labels' must be lists of equal length that are not empty"});
  }
  Words all;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto* const word = words[i].get_ptr<const std::string*>();
    if (word == nullptr || word->empty() ||
        word->find_first_of(" \t\r\n\v\f") != std::string::npos) {
      fail_input({.wrong = fmt::format("word {} must be a text without blanks", i + 1)});
    }
    all.text += i == 0 ? "" : " ";
    all.places.push_back({.begin = static_cast<std::int64_t>(all.text.size()),
                          .end = static_cast<std::int64_t>(all.text.size() + word->size())});
    all.text += *word;
    all.labels.push_back(labels[i].is_null() ? "" : label_of(labels[i], "an entry of 'labels'"));
  }
  if (std::ranges::all_of(all.labels, &std::string::empty)) {
    fail_input({.wrong = "no word has a label"});
  }
  return all;
}

/// The label of each token: of the first one that has a part of a word. Error (input): a word has
/// none, unless the text was `cut`.
std::vector<std::string> token_labels(const Words& words, const tokenize::Encoding& tokens,
                                      bool cut) {
  std::vector<std::string> labels(tokens.ids.size());
  std::size_t token = 0;
  for (std::size_t i = 0; i < words.places.size(); ++i) {
    while (token < tokens.ids.size() &&
           (tokens.offsets[token].end <= words.places[i].begin ||
            tokens.offsets[token].end <= tokens.offsets[token].begin)) {
      ++token;
    }
    const bool own = token < tokens.ids.size() && tokens.offsets[token].begin < words.places[i].end;
    if (!own && !cut) {
      fail_input({.wrong = fmt::format("no token of the tokenizer begins in word {}", i + 1)});
    }
    if (own) {
      labels[token++] = words.labels[i];
    }
  }
  return labels;
}

}  // namespace

TaggedText ExampleMaker::make_tagged(std::string_view record, std::int64_t longest) const {
  const Json json = parsed_record(record);
  for (const char* const name : {"words", "labels"}) {
    if (!json.contains(name)) {
      fail_input({.wrong = fmt::format("'{}' is missing", name),
                  .expected = "'words' and 'labels'",
                  .advice = "train.objective=token_classification reads them"});
    }
  }
  const Words words = words_of(json);
  state_->check_special(words.text);
  tokenize::Encoding encoded = state_->texts.tokenizer().tokenizer->encode_with_offsets(
      words.text, {.parse_special = state_->texts.special() == SpecialText::read});
  TaggedText out;
  out.whole = std::ssize(encoded.ids);
  static_cast<void>(token_labels(words, encoded, false));
  shorten(encoded, longest);
  out.labels = token_labels(words, encoded, out.whole > longest);
  out.example.ids = std::move(encoded.ids);
  out.example.trained.assign(out.example.ids.size(), 0);
  out.example.unread = unread_members(json, {"words", "labels"});
  return out;
}

void ExampleMaker::State::check_special(const std::string& text) const {
  const auto id = texts.special() == SpecialText::refuse ? texts.special_in(text) : std::nullopt;
  if (id) {
    fail_input(
        {.wrong = fmt::format("the text contains the special token '{}'",
                              shown(texts.tokenizer().tokenizer->token(*id).value_or(""), 40)),
         .advice = "remove it, or set data.special_tokens"});
  }
}

void ExampleMaker::State::check_plain(const Conversation& conversation) const {
  const auto check = [&](const Json& value, const std::string& what) {
    for_each_text(value, [&](const std::string& text) {
      if (const auto id = texts.special_in(text)) {
        fail_input(
            {.wrong = fmt::format("{} contains the special token '{}'", what,
                                  shown(texts.tokenizer().tokenizer->token(*id).value_or(""), 40)),
             .advice = "remove it: the template writes special tokens"});
      }
    });
  };
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    check(conversation.messages[i].json, fmt::format("message {}", i + 1));
  }
  check(conversation.tools, "'tools'");
}

Example ExampleMaker::State::conversation(const WrittenMembers& record, const Written& messages,
                                          std::size_t first_trained) const {
  if (!chat) {
    fail_input({.wrong = "the tokenizer has no chat template, so conversations have no text",
                .advice = "set data.chat_template"});
  }
  const Conversation conversation = conversation_of(record, messages, contents);
  check_plain(conversation);
  const bool all = train_on == TrainOn::all;
  const RenderedChat rendered = all ? RenderedChat{chat->render(conversation.text, false), {}}
                                    : chat->render_with_answers(conversation.text);
  const tokenize::Encoding tokens = texts.tokenizer().tokenizer->encode_with_offsets(
      rendered.text, {.add_special = false, .parse_special = true});
  Example out;
  out.ids = tokens.ids;
  out.trained.assign(out.ids.size(), all ? 1 : 0);
  out.unread = conversation.unread;
  check_special(conversation, rendered.text, out.ids);
  check_written(conversation, rendered, first_trained, tokens, out);
  if (!all) {
    train_answers(conversation, rendered, first_trained, tokens, out);
  }
  for (std::size_t i = 0; all && i < conversation.messages.size(); ++i) {
    if (!conversation.messages[i].trained) {
      fail_input({.wrong = fmt::format("message {} is marked as not to be learned", i + 1),
                  .advice = "set data.train_on=answers, or remove the mark"});
    }
  }
  return out;
}

/// Where the first token that ends texts begins in an answer that the template does not mark.
std::optional<std::size_t> ExampleMaker::State::end_of_answer(
    const RenderedChat& rendered, std::size_t answer, const tokenize::Encoding& tokens) const {
  const AnswerPlace& own = rendered.answers[answer];
  if (own.end) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    const tokenize::ByteRange& bytes = tokens.offsets[i];
    if (bytes.begin >= own.begin && ends_answers(tokens.ids[i])) {
      return static_cast<std::size_t>(bytes.begin);
    }
  }
  return std::nullopt;
}

/// Error (input): the text lacks what the record says, or what is trained does, and the run does
/// not allow it.
void ExampleMaker::State::check_written(const Conversation& conversation,
                                        const RenderedChat& rendered, std::size_t first_trained,
                                        const tokenize::Encoding& tokens, Example& out) const {
  std::vector<MessagePlace> places(conversation.messages.size());
  for (std::size_t a = 0; a < rendered.answers.size(); ++a) {
    const auto message = static_cast<std::size_t>(rendered.answers[a].message);
    MessagePlace& place = places[message];
    place.begin = place.begin.value_or(static_cast<std::size_t>(rendered.answers[a].begin));
    if (message >= first_trained && conversation.messages[message].trained) {
      place.end = end_of_answer(rendered, a, tokens);
    }
  }
  for (const DroppedContent& one :
       dropped_contents(conversation, rendered.text, places, out.unread)) {
    if (std::ranges::find(options.allow_dropped, one.kind) != options.allow_dropped.end()) {
      ++out.dropped[one.kind];
      continue;
    }
    if (one.after_end) {
      fail_input({.wrong = fmt::format("of message {}, '{}' would not be trained: it is after the "
                                       "first token that ends generated texts",
                                       one.message, shown(one.text, 60)),
                  .advice = "mark the answers in the template with {% generation %} and "
                            "{% endgeneration %}, or do not let that token end texts"});
    }
    const std::string of =
        one.message > 0 ? fmt::format("message {}", one.message) : std::string("the record");
    fail_input({.wrong = fmt::format("the template does not write the {} of {}: '{}'", one.kind, of,
                                     shown(one.text, 60)),
                .advice = fmt::format("use a template that writes it, remove it from the record, "
                                      "or allow this with data.allow_dropped = [\"{}\"]",
                                      one.kind)});
  }
}

void ExampleMaker::State::train_answers(const Conversation& conversation,
                                        const RenderedChat& rendered, std::size_t first_trained,
                                        const tokenize::Encoding& tokens, Example& out) const {
  bool says_something = false;  // besides its end
  for (std::size_t a = 0; a < rendered.answers.size(); ++a) {
    const AnswerPlace& answer = rendered.answers[a];
    const auto message = static_cast<std::size_t>(answer.message);
    if (message < first_trained || !conversation.messages[message].trained) {
      continue;
    }
    // A template without marks: an answer is what the model has to generate, up to the first token
    // that ends it.
    const std::int64_t end = answer.end                        ? *answer.end
                             : a + 1 < rendered.answers.size() ? rendered.answers[a + 1].begin
                                                               : std::ssize(rendered.text);
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
      says_something =
          says_something ||
          (!stopped && !is_blank(std::string_view(rendered.text)
                                     .substr(static_cast<std::size_t>(bytes.begin),
                                             static_cast<std::size_t>(bytes.end - bytes.begin))));
    }
    // An answer may have several marked parts; the last one ends it.
    if (a + 1 < rendered.answers.size() && rendered.answers[a + 1].message == answer.message) {
      continue;
    }
    if (!stopped) {
      fail_input({.wrong = fmt::format("the answer of message {} does not end with a token that "
                                       "ends generated texts, so the model would not learn to stop",
                                       answer.message + 1),
                  .expected = fmt::format("{} such tokens, of tokenizer_config.json and "
                                          "generation_config.json",
                                          texts.tokenizer().special.stop.size()),
                  .advice = "name the template's token there as eos, or in data.end_tokens"});
    }
    if (!std::exchange(says_something, false)) {
      fail_input({.wrong = fmt::format("of the answer of message {} only the end would be trained",
                                       answer.message + 1),
                  .expected = "a template that writes the answer"});
    }
  }
}

void ExampleMaker::State::check_special(const Conversation& conversation, const std::string& text,
                                        std::span<const TokenId> ids) const {
  const tokenize::Tokenizer& t = *texts.tokenizer().tokenizer;
  const auto& bos = texts.tokenizer().special.bos;
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) {
    fail_input({.wrong = "the text begins with two tokens for its beginning (bos)",
                .advice = "write it once in the template"});
  }
  // <|im_end|> and its like are special tokens, or the model reads their letters; what the record
  // itself says is data.
  std::vector<std::string> unknown = names_in_bars(text);
  std::erase_if(unknown, [&](const std::string& name) { return t.id(name).has_value(); });
  if (unknown.empty()) {
    return;
  }
  std::set<std::string> said;
  for_each_text(parse_json(conversation.text), [&](const std::string& own) {
    std::ranges::copy(names_in_bars(own), std::inserter(said, said.end()));
  });
  std::erase_if(unknown, [&](const std::string& name) { return said.contains(name); });
  if (!unknown.empty()) {
    fail_input({.wrong = fmt::format("the text contains '{}', which the tokenizer does not have "
                                     "as a token",
                                     shown(unknown.front())),
                .advice = "use the template and the tokenizer of one model"});
  }
}

Example ExampleMaker::State::completion(const std::string& prompt, const std::string& answer,
                                        const char* name) const {
  if (is_blank(answer)) {
    fail_input({.wrong = fmt::format("'{}' is empty", name)});
  }
  if (prompt.empty()) {
    fail_input({.wrong = "'prompt' is empty", .advice = "use 'text' for texts without a prompt"});
  }
  Example out;
  std::vector<tokenize::ByteRange> offsets;
  texts.encode_to(prompt + answer, {}, out.ids, &offsets);
  const std::int64_t begin = std::ssize(prompt);
  const bool all = train_on == TrainOn::all;
  bool says_something = false;
  for (std::size_t i = 0; i < out.ids.size(); ++i) {
    const tokenize::ByteRange& bytes = offsets[i];
    const bool of_answer = bytes.begin >= begin;
    out.joined += !of_answer && bytes.end > begin ? 1 : 0;
    out.trained.push_back(of_answer || (all && i >= texts.prefix().size()) ? 1 : 0);
    says_something =
        says_something || (of_answer && bytes.end > bytes.begin && !ends_answers(out.ids[i]));
  }
  if (!says_something && !all) {
    fail_input(
        {.wrong = fmt::format("of '{}' only the end would be trained: its first token begins "
                              "in the prompt",
                              name),
         .advice = "end the prompt before the blank, and begin the answer with it"});
  }
  return out;
}

Example ExampleMaker::State::whole(const std::string& text) const {
  Example out;
  texts.encode_to(text, {}, out.ids);
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
