module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>

#include "jinja/run.hpp"
#include "jinja/syntax.hpp"
#include "jinja/tokens.hpp"
#include "jinja/value.hpp"
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

/// Values of a text take up to 100 times as much memory as their text.
constexpr JsonLimits conversation_limits{
    .bytes = std::size_t{1} << 26, .values = 1'000'000, .depth = 64};

/// Of the renderings that find the answers of a conversation together.
constexpr std::int64_t most_steps = 200'000'000;

/// A conversation, or variables: what they have is charged once, not in each rendering.
class Source {
 public:
  Source(std::string_view json, const std::string& what) {
    const ParsedJson parsed = parse_json_object(json, conversation_limits);
    if (!parsed.problem.empty()) {
      fail_input({.thing = what, .wrong = parsed.problem});
    }
    value_ = jinja::from_json(json, budget_);
  }
  const jinja::Dict& members() const { return value_.dict(); }

 private:
  jinja::Budget budget_{{.memory = std::size_t{1} << 29}};
  jinja::Value value_;
};

bool is_answer(const jinja::Value& message) {
  const jinja::Value* role = message.is_dict() ? message.dict().find("role") : nullptr;
  return role != nullptr && role->is_text() && role->text() == "assistant";
}

/// The first place at which two texts differ, for errors.
std::string difference(std::string_view expected, std::string_view got) {
  const auto [a, b] = std::ranges::mismatch(expected, got);
  const auto at = static_cast<std::size_t>(a - expected.begin());
  const auto part = [at](std::string_view text) {
    const std::size_t begin = at < 10 ? 0 : at - 10;
    return jinja::one_line(text.substr(std::min(begin, text.size()), 40));
  };
  return fmt::format("byte {}: '{}' and '{}'", at, part(expected), part(got));
}

}  // namespace

struct TextTemplate::State {
  jinja::Template parsed;
};

TextTemplate::TextTemplate(std::string_view text, const std::string& name)
    : state_(std::make_shared<const State>(
          State{jinja::parse(text, name, jinja::TemplateForm::verbatim)})) {}

std::string TextTemplate::render(std::string_view members) const {
  const Source source(members, state_->parsed.name);
  return jinja::run(state_->parsed, source.members(), {}, "").text;
}

struct ChatTemplate::State {
  jinja::Template parsed;
  Source variables;
  std::string now;

  State(std::string_view text, const std::string& name, std::string_view json)
      : parsed(jinja::parse(text, name)), variables(json, name + ": variables") {
    if (const jinja::Value* const given = variables.members().find("now")) {
      if (!given->is_text()) {
        fail_input({.thing = name + ": variables", .wrong = "'now' must be a text with a date"});
      }
      now = given->text();
    }
  }

  jinja::Output output(const jinja::Dict& conversation, const jinja::List& messages,
                       bool add_generation_prompt) const {
    jinja::Budget budget;  // of the list of messages alone
    jinja::Dict all = variables.members();
    for (const char* const name : {"tools", "documents"}) {  // as in transformers, always defined
      all.set(name, jinja::Value());
    }
    for (const auto& [name, value] : conversation.members()) {
      all.set(name, value);
    }
    all.set("messages", jinja::make_list(budget, messages));
    all.set("add_generation_prompt", jinja::Value(add_generation_prompt));
    return jinja::run(parsed, all, messages, now);
  }
};

ChatTemplate::ChatTemplate(std::string_view text, const std::string& name,
                           std::string_view variables)
    : state_(std::make_shared<const State>(text, name, variables)) {}

bool ChatTemplate::marks_answers() const { return state_->parsed.has_generation; }

namespace {

std::string message_of(std::string_view role, const std::string& content) {
  return fmt::format(R"({{"role":"{}","content":{}}})", role, content);
}

/// A short conversation in which a message of the role has this content.
std::string conversation_with(std::string_view role, const std::string& content) {
  const auto other = [&](const char* name, const char* text) {
    return message_of(name, content.starts_with('[')
                                ? fmt::format(R"([{{"type":"text","text":"{}"}}])", text)
                                : fmt::format(R"("{}")", text));
  };
  const std::string own = message_of(role, content);
  const std::string question = other("user", "question");
  const std::string call =
      R"({"role":"assistant","content":"","tool_calls":[{"id":"123456789","type":"function",)"
      R"("function":{"name":"f","arguments":{}}}]})";
  const std::vector<std::string> messages =
      role == "user"        ? std::vector{own, other("assistant", "answer")}
      : role == "assistant" ? std::vector{question, own}
      : role == "tool"      ? std::vector{question, call, own, other("assistant", "answer")}
                            : std::vector{own, question, other("assistant", "answer")};
  return fmt::format(R"({{"messages":[{}]}})", fmt::join(messages, ","));
}

}  // namespace

ContentForms ChatTemplate::content_forms(std::string_view role) const {
  constexpr std::string_view first = "tesserapartone";
  constexpr std::string_view second = "tesseraparttwo";
  const auto rendered = [&](const std::string& content) -> std::string {
    try {
      return render(conversation_with(role, content), false);
    } catch (const Error&) {
      return {};  // it concatenates texts, or wants another conversation
    }
  };
  const std::string parts = rendered(fmt::format(
      R"([{{"type":"text","text":"{}"}},{{"type":"text","text":"{}"}}])", first, second));
  const std::size_t at = parts.find(first);
  const std::size_t next = parts.find(second);
  // Python's print of the list is no use of it.
  const bool takes_parts = at != std::string::npos && next != std::string::npos &&
                           parts.substr(at, next - at).find("text") == std::string::npos;
  const bool writes_texts =
      rendered(fmt::format(R"("{}{}")", first, second)).find(fmt::format("{}{}", first, second)) !=
      std::string::npos;
  return {.texts = writes_texts || !takes_parts, .parts = takes_parts};
}

namespace {

const jinja::List& messages_of(const jinja::Dict& conversation) {
  const jinja::Value* messages = conversation.find("messages");
  if (messages == nullptr || !messages->is_sequence()) {
    fail_input({.wrong = "'messages' must be a list"});
  }
  return messages->sequence().entries;
}

/// What the template marks, by answers: a mark is of the message that the template is at. Elsewhere
/// each mark is an answer, in their order, or belongs to the answer before it.
std::vector<AnswerPlace> marked_answers(const std::string& name,
                                        const std::vector<jinja::GenerationSpan>& marks,
                                        const std::vector<std::int64_t>& answers) {
  std::vector<AnswerPlace> places;
  std::vector<std::int64_t> marked;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    std::optional<std::int64_t> message;
    if (marks[i].message) {
      message = static_cast<std::int64_t>(*marks[i].message);
    } else if (marks.size() == answers.size()) {
      message = answers[i];
    } else if (!marked.empty()) {
      message = marked.back();  // what follows an answer
    }
    if (!message || !std::ranges::binary_search(answers, *message)) {
      fail_input({.thing = name,
                  .wrong = fmt::format("the part {} that {{% generation %}} marks is not of an "
                                       "answer of the assistant",
                                       i + 1)});
    }
    marked.push_back(*message);
    places.push_back({static_cast<std::int64_t>(marks[i].begin),
                      static_cast<std::int64_t>(marks[i].end), *message});
  }
  for (const std::int64_t answer : answers) {
    if (std::ranges::find(marked, answer) == marked.end()) {
      fail_input({.thing = name,
                  .wrong = fmt::format("the template does not mark the answer of message {} with "
                                       "{{% generation %}}",
                                       answer + 1)});
    }
  }
  return places;
}

}  // namespace

std::string ChatTemplate::render(std::string_view conversation, bool add_generation_prompt) const {
  const Source source(conversation, "conversation");
  const jinja::Dict& all = source.members();
  return state_->output(all, messages_of(all), add_generation_prompt).text;
}

RenderedChat ChatTemplate::render_with_answers(std::string_view conversation) const {
  const Source source(conversation, "conversation");
  const jinja::Dict& all = source.members();
  const jinja::List& messages = messages_of(all);
  jinja::Output whole = state_->output(all, messages, false);
  RenderedChat chat;
  chat.text = std::move(whole.text);
  std::vector<std::int64_t> answers;
  for (std::int64_t i = 0; i < std::ssize(messages); ++i) {
    if (is_answer(messages[static_cast<std::size_t>(i)])) {
      answers.push_back(i);
    }
  }
  if (marks_answers()) {
    chat.answers = marked_answers(state_->parsed.name, whole.generated, answers);
    return chat;
  }
  std::int64_t steps = 0;
  for (const std::int64_t i : answers) {
    const jinja::List before(messages.begin(), messages.begin() + i);
    const jinja::Output beginning = state_->output(all, before, true);
    const std::string& prompt = beginning.text;
    steps += beginning.steps;
    if (steps > most_steps) {
      fail_input({.thing = state_->parsed.name,
                  .wrong = fmt::format("to find the {} answers of a conversation takes more than "
                                       "{} steps",
                                       answers.size(), most_steps),
                  .advice = "mark the answers in the template with {% generation %}, or divide the "
                            "conversation"});
    }
    if (!chat.text.starts_with(prompt)) {
      fail_input({.thing = state_->parsed.name,
                  .wrong = fmt::format("the template writes what comes before message {} in "
                                       "another way when the answer follows, see {}",
                                       i + 1, difference(prompt, chat.text)),
                  .advice = "mark the answers in the template with {% generation %} and "
                            "{% endgeneration %}, or train on all tokens"});
    }
    chat.answers.push_back({std::ssize(prompt), std::nullopt, i});
  }
  return chat;
}

}  // namespace tessera::data
