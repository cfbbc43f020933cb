module;
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.server;

import :answer_writer;
import :model_service;
import tessera.base;
import tessera.text;
import tessera.tokenize;

namespace tessera::app {

AnswerWriter::AnswerWriter(HttpResponder responder, AnswerHead head,
                           const tokenize::Tokenizer& tokenizer, ServerCounts& counts,
                           AnswerRequest asked)
    : responder_(std::move(responder)),
      head_(std::move(head)),
      tokenizer_(tokenizer),
      counts_(counts),
      asked_(std::move(asked)),
      left_(asked_.prompts.size() * static_cast<std::size_t>(asked_.request.count)) {
  for (std::size_t index = 0; index < left_; ++index) {
    Text text{.names = TokenNames(tokenizer_, prompt(index).back())};
    text.whole.index = index;
    if (asked_.calls) {
      text.calls.emplace(*asked_.calls, asked_.tools);
    }
    texts_.push_back(std::move(text));
  }
  for (const AnswerPrompt& prompt : asked_.prompts) {
    usage_.prompt += std::ssize(prompt.tokens);
  }
  counts_.begin();
  counts_.add_prompt(usage_.prompt);
}

AnswerWriter::~AnswerWriter() { counted(RequestEnd::left); }

double AnswerWriter::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void AnswerWriter::counted(RequestEnd how) {
  if (!over_.exchange(true)) {
    counts_.end(how, seconds());
  }
}

const AnswerPrompt& AnswerWriter::asked_for(std::size_t index) const {
  return asked_.prompts.at(index / static_cast<std::size_t>(asked_.request.count));
}

AnswerReceiver AnswerWriter::receiver(std::size_t index) {
  // The job keeps the writer, which keeps the job by a weak pointer.
  return {.part = [writer = shared_from_this(),
                   index](const text::TextPart& part) { writer->add_part(index, part); },
          .end = [writer = shared_from_this(),
                  index](const text::GeneratedText& text) { writer->end_text(index, text); },
          .failed =
              [writer = shared_from_this()](const std::exception& error) {
                writer->refuse(error_answer(error), RequestEnd::failed);
              }};
}

std::optional<std::vector<AnswerToken>> AnswerWriter::named(
    Text& text, std::span<const text::TokenLikelihoods> tokens) {
  if (!asked_.request.options.likeliest) {
    return std::nullopt;
  }
  std::vector<AnswerToken> names;
  for (const text::TokenLikelihoods& token : tokens) {
    names.push_back(text.names.add(token));
  }
  return names;
}

std::string AnswerWriter::beginning(std::size_t index) {
  if (std::exchange(texts_[index].begun, true)) {
    return {};
  }
  std::string events = asked_.format->first(head_, index);
  if (asked_for(index).echo) {
    events += asked_.format->part(head_, {.index = index, .text = *asked_for(index).echo});
  }
  return events;
}

void AnswerWriter::write(const std::string& event) {
  if (!std::exchange(begun_, true)) {
    responder_.begin(
        {.type = "text/event-stream", .body = event, .headers = {{"Cache-Control", "no-cache"}}},
        ": \n\n");  // a comment
  } else {
    responder_.write(event);
  }
}

void AnswerWriter::add_calls(std::size_t index, const text::ToolCallReader::Part& read,
                             AnswerText& text) {
  Text& own = texts_[index];
  text.text += read.text;
  text.thoughts += read.thoughts;
  for (const text::ToolCall& call : read.calls) {
    if (own.called > 0 && !asked_.several_calls) {
      break;  // the request wants one
    }
    // Nine letters and digits: templates of Mistral's models take no other ids.
    constexpr std::string_view letters =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    auto number = std::hash<std::string>{}(fmt::format("{}/{}/{}", head_.id, index, own.called));
    std::string id;
    for (int i = 0; i < 9; ++i, number /= letters.size()) {
      id += letters[number % letters.size()];
    }
    text.calls.push_back({.id = std::move(id), .index = own.called++, .call = call});
  }
  text.called = own.called > 0;
}

void AnswerWriter::add_part(std::size_t index, const text::TextPart& part) {
  if (over_) {
    return;
  }
  if (!std::exchange(has_token_, true)) {
    counts_.first_token(seconds());
  }
  if (!asked_.request.stream) {
    return;
  }
  AnswerText text{.index = index};
  if (auto& calls = texts_[index].calls) {
    add_calls(index, calls->add(part.text), text);
  } else {
    text.text = part.text;
  }
  if (!text.text.empty() || !text.thoughts.empty() || !text.calls.empty() ||
      !part.likelihoods.empty()) {
    text.tokens = named(texts_[index], part.likelihoods);
    write(beginning(index) + asked_.format->part(head_, text));
  }
}

void AnswerWriter::end_text(std::size_t index, const text::GeneratedText& text) {
  if (over_) {
    return;
  }
  usage_.completion += std::ssize(text.tokens);
  AnswerText& whole = texts_[index].whole;
  whole.end = text.end;
  auto& calls = texts_[index].calls;
  if (asked_.request.stream) {
    AnswerText rest{.index = index};
    if (calls) {
      add_calls(index, calls->finish(), rest);
    }
    whole.called = rest.called;
    const bool has_rest = !rest.text.empty() || !rest.thoughts.empty() || !rest.calls.empty();
    write(beginning(index) + (has_rest ? asked_.format->part(head_, rest) : "") +
          asked_.format->part(head_, whole));
  } else {
    const AnswerPrompt& asked = asked_for(index);
    if (calls) {
      add_calls(index, calls->add(text.text), whole);
      add_calls(index, calls->finish(), whole);
    } else {
      whole.text = asked.echo.value_or("") + text.text;
    }
    if (asked.echo && asked_.request.options.likeliest) {
      TokenNames names(tokenizer_);
      whole.tokens.emplace().push_back(names.add(asked.tokens.front()));
      texts_[index].names = names;
      auto of_prompt = named(texts_[index], text.prompt_likelihoods);
      whole.tokens->insert(whole.tokens->end(), of_prompt->begin(), of_prompt->end());
    }
    if (auto generated = named(texts_[index], text.likelihoods)) {
      if (!whole.tokens) {
        whole.tokens.emplace();
      }
      whole.tokens->insert(whole.tokens->end(), generated->begin(), generated->end());
    }
  }
  if (--left_ == 0) {
    finish();
  }
}

void AnswerWriter::finish() {
  counts_.add_generated(usage_.completion);
  counted(RequestEnd::answered);
  if (asked_.request.stream) {
    write((asked_.request.stream_usage ? asked_.format->usage(head_, usage_) : "") + stream_end);
    responder_.end();
    return;
  }
  std::vector<AnswerText> all;
  for (Text& text : texts_) {
    all.push_back(std::move(text.whole));
  }
  responder_.answer({.body = asked_.format->whole(head_, all, usage_)});
}

void AnswerWriter::refuse(const HttpAnswer& answer, RequestEnd how) {
  if (over_.load()) {
    return;
  }
  counted(how);
  for (const std::weak_ptr<AnswerJob>& weak : jobs_) {
    if (const auto job = weak.lock()) {
      job->cancel();
    }
  }
  if (!begun_) {
    responder_.answer(answer);
    return;
  }
  write("data: " + answer.body + "\n\n");
  responder_.end();
}

}  // namespace tessera::app
