module;
#include <fmt/format.h>

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
#include "jinja/value.hpp"
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

jinja::Dict object_of(std::string_view json, const std::string& what) {
  ParsedJson parsed = parse_json_object(json);
  if (!parsed.problem.empty()) {
    fail_input({.thing = what, .wrong = parsed.problem});
  }
  return jinja::from_json(parse_ordered_json(json)).dict();  // members in their order
}

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
    return shown(text.substr(std::min(begin, text.size()), 40));
  };
  return fmt::format("byte {}: '{}' and '{}'", at, part(expected), part(got));
}

}  // namespace

struct ChatTemplate::State {
  jinja::Template parsed;
  jinja::Dict variables;

  jinja::Output output(const jinja::Dict& conversation, const jinja::List& messages,
                       bool add_generation_prompt) const {
    jinja::Dict all = variables;
    for (const char* const name : {"tools", "documents"}) {  // as in transformers, always defined
      all.set(name, jinja::Value());
    }
    for (const auto& [name, value] : conversation.members()) {
      all.set(name, value);
    }
    all.set("messages", jinja::Value(messages));
    all.set("add_generation_prompt", jinja::Value(add_generation_prompt));
    return jinja::run(parsed, all);
  }
};

ChatTemplate::ChatTemplate(std::string_view text, const std::string& name,
                           std::string_view variables)
    : state_(std::make_shared<const State>(
          State{jinja::parse(text, name), object_of(variables, name + ": variables")})) {}

bool ChatTemplate::marks_answers() const { return state_->parsed.has_generation; }

namespace {

const jinja::List& messages_of(const jinja::Dict& conversation) {
  const jinja::Value* messages = conversation.find("messages");
  if (messages == nullptr || !messages->is_list()) {
    fail_input({.wrong = "'messages' must be a list"});
  }
  return messages->list();
}

}  // namespace

std::string ChatTemplate::render(std::string_view conversation, bool add_generation_prompt) const {
  const jinja::Dict all = object_of(conversation, "conversation");
  return state_->output(all, messages_of(all), add_generation_prompt).text;
}

RenderedChat ChatTemplate::render_with_answers(std::string_view conversation) const {
  const jinja::Dict all = object_of(conversation, "conversation");
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
    if (whole.generated.size() != answers.size()) {
      fail_input({.thing = state_->parsed.name,
                  .wrong = "the template does not mark each answer once",
                  .expected = fmt::format("{} parts with {{% generation %}}", answers.size()),
                  .got = fmt::format("{}", whole.generated.size())});
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      chat.answers.push_back({static_cast<std::int64_t>(whole.generated[i].first),
                              static_cast<std::int64_t>(whole.generated[i].second), answers[i]});
    }
    return chat;
  }
  for (const std::int64_t i : answers) {
    const jinja::List before(messages.begin(), messages.begin() + i);
    const std::string prompt = state_->output(all, before, true).text;
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
