module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.evaluation;

import :python_values;
import :task_requests;
import tessera.base;
import tessera.tokenize;
import tessera.text;

namespace tessera::evaluation {
namespace {

const char* name_of(TaskMessage::Role role) {
  switch (role) {
    case TaskMessage::Role::system:
      return "system";
    case TaskMessage::Role::user:
      return "user";
    case TaskMessage::Role::assistant:
      break;
  }
  return "assistant";
}

/// Messages as a conversation: each as a turn, or what is before the answer in one.
std::vector<text::ChatMessage> turns_of(std::span<const TaskMessage> messages, bool each) {
  std::vector<text::ChatMessage> turns;
  const auto is_system = [](const TaskMessage& one) {
    return one.role == TaskMessage::Role::system;
  };
  if (each) {
    for (const TaskMessage& message : messages) {
      turns.push_back({.role = name_of(message.role), .content = message.text});
    }
    return turns;
  }
  if (!messages.empty() && is_system(messages.front())) {
    turns.push_back({.role = "system", .content = messages.front().text});
    messages = messages.subspan(1);
  }
  std::string all = joined_text(messages.first(messages.size() - 1)) + messages.back().text;
  turns.push_back({.role = "user", .content = std::move(all)});
  return turns;
}

}  // namespace

TaskRequests::TaskRequests(const text::TextModel& model, const EvaluationTask& task,
                           const TaskChat& chat)
    : model_(model), task_(task), tokenizer_(*model.tokenizer().tokenizer), chat_(chat) {
  if (chat.asked) {
    format_.emplace(model, chat.template_file);
  }
  if (task.kind == RequestKind::generate_until && model.usual_length() <= task.most_tokens) {
    fail_input({.thing = task.file,
                .wrong = "answers are longer than the model is meant for",
                .expected = fmt::format("max_gen_toks below {}", model.usual_length()),
                .got = fmt::format("{}", task.most_tokens)});
  }
}

TaskRequests::~TaskRequests() = default;

TaskRequest TaskRequests::request(const TaskQuestion& question) const {
  TaskRequest made;
  switch (task_.kind) {
    case RequestKind::multiple_choice:
      for (std::size_t i = 0; i < question.choices.size(); ++i) {
        made.scored.push_back(
            after(context(question.contexts[question.has_inputs ? i : 0]),
                  delimiter() + question.continuations[question.has_inputs ? 0 : i]));
      }
      break;
    case RequestKind::loglikelihood:
      made.scored.push_back(after(context(question.contexts[0]), question.continuations[0]));
      break;
    case RequestKind::loglikelihood_rolling:
      made.scored = windows(question.continuations[0]);
      break;
    case RequestKind::generate_until:
      made.prompt = prompt(context(question.contexts[0]));
      break;
  }
  return made;
}

std::size_t TaskRequests::count(const TaskQuestion& question) const {
  switch (task_.kind) {
    case RequestKind::multiple_choice:
      return question.choices.size();
    case RequestKind::loglikelihood:
      return 1;
    case RequestKind::loglikelihood_rolling:
      break;
    case RequestKind::generate_until:
      return 0;
  }
  return windows(question.continuations[0]).size();
}

std::string TaskRequests::context(std::span<const TaskMessage> messages) const {
  if (!format_) {
    return joined_text(messages);
  }
  std::string begins;
  if (messages.back().role == TaskMessage::Role::assistant) {
    begins = messages.back().text;
    messages = messages.first(messages.size() - 1);
  }
  return format_->text(turns_of(messages, !chat_.one_turn)) + begins;
}

/// Between the context and a choice. In a conversation the template separates them.
std::string TaskRequests::delimiter() const {
  if (!format_) {
    return task_.target_delimiter;
  }
  const std::string begins =
      task_.answer_prefix.value.is_string() ? task_.answer_prefix.value.get<std::string>() : "";
  return begins.empty() || without_space_behind(begins) != begins ? "" : task_.target_delimiter;
}

TaskRequests::Tokens TaskRequests::encoded(std::string_view text, bool special) const {
  // A template may have written the token that begins texts.
  const auto first = model_.tokenizer().special.bos;
  const auto begins = first ? tokenizer_.token(*first) : std::nullopt;
  const bool there = begins && !begins->empty() && text.starts_with(*begins);
  const auto ids = tokenizer_.encode(text, {.add_special = special && !there});
  return {ids.begin(), ids.end()};
}

std::int64_t TaskRequests::prefix() const {
  const tokenize::SpecialTokens& special = model_.tokenizer().special;
  const auto first = special.bos ? special.bos : special.eos;
  if (!first) {
    fail_input({.thing = "evaluate",
                .wrong = "a text has nothing before it, and the tokenizer has no token that "
                         "begins or ends texts"});
  }
  return *first;
}

/// White space at the end of the context belongs to the continuation.
text::ScoredText TaskRequests::after(std::string_view context,
                                     const std::string& continuation) const {
  const std::string_view before = without_space_behind(context);
  const std::string own = std::string(context.substr(before.size())) + continuation;
  if (!before.empty()) {
    return cut(encoded(std::string(before) + own, true), std::ssize(encoded(before, true)));
  }
  Tokens tokens = {prefix()};
  const Tokens rest = encoded(own, false);
  if (!rest.empty() && rest[0] == tokens[0]) {
    tokens.clear();
  }
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return cut(std::move(tokens), 1);
}

/// A whole document in windows of the longest sequence, each with one token before it.
std::vector<text::ScoredText> TaskRequests::windows(const std::string& document) const {
  const Tokens tokens = encoded(document, true);
  const auto longest = static_cast<std::size_t>(model_.usual_length());
  std::vector<text::ScoredText> all;
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(longest, tokens.size() - done);
    const std::size_t end = done + count;
    // The last window is as long as the others, and scores what is new.
    const std::size_t first = done == 0 ? 0 : end - std::min(longest, end - 1);
    Tokens window = done == 0 ? Tokens{prefix()} : Tokens{tokens[first - 1]};
    window.insert(window.end(), tokens.begin() + static_cast<std::ptrdiff_t>(first),
                  tokens.begin() + static_cast<std::ptrdiff_t>(end));
    all.push_back(cut(std::move(window), static_cast<std::int64_t>(1 + done - first)));
    done = end;
  }
  return all;
}

/// The last tokens of a text that is too long.
text::ScoredText TaskRequests::cut(Tokens tokens, std::int64_t first) const {
  const std::int64_t beyond = std::ssize(tokens) - (model_.usual_length() + 1);
  if (beyond > 0) {
    tokens.erase(tokens.begin(), tokens.begin() + beyond);
    first -= beyond;
  }
  return {.tokens = std::move(tokens), .first = std::max<std::int64_t>(first, 1)};
}

TaskRequests::Tokens TaskRequests::prompt(const std::string& context) const {
  Tokens tokens = encoded(context, true);
  const std::int64_t room = model_.usual_length() - task_.most_tokens;
  if (std::ssize(tokens) > room) {
    tokens.erase(tokens.begin(), tokens.end() - room);
  }
  return tokens;
}

text::GenerationOptions TaskRequests::generation(std::int64_t batch) const {
  // Stops that are written as special tokens, which texts do not have, end a text by their ids.
  Tokens ends;
  for (const std::string& stop : task_.until) {
    const auto id = tokenizer_.id(stop);
    if (id && tokenizer_.is_special(*id)) {
      ends.push_back(*id);
    }
  }
  return {.tokens = task_.most_tokens,
          .sampling = {.temperature = task_.temperature},
          .stop = task_.until,
          .end_tokens = std::move(ends),
          .batch = batch};
}

std::string TaskRequests::answer(const text::GeneratedText& text) const {
  // A text for itself: how its first token is written does not depend on the prompt.
  std::vector<tokenize::TokenId> ids;
  for (const std::int64_t token : text.tokens) {
    ids.push_back(static_cast<tokenize::TokenId>(token));
  }
  std::string answer = tokenizer_.decode(ids, true);
  for (const std::string& stop : task_.until) {
    answer = answer.substr(0, answer.find(stop));
  }
  return answer;
}

}  // namespace tessera::evaluation
