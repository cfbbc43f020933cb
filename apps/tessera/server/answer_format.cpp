module;
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.text;
import tessera.tokenize;

namespace tessera::app {
namespace {

using Ordered = nlohmann::ordered_json;

/// Null: the text goes on.
Ordered reason_of(const AnswerText& text) {
  if (!text.end) {
    return nullptr;
  }
  const bool complete = *text.end == text::TextEnd::token || *text.end == text::TextEnd::stop;
  return complete && text.called ? "tool_calls" : complete ? "stop" : "length";
}

Ordered usage_of(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion}};
}

Ordered headed(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Ordered model_of(const ServedModel& model) {
  Ordered json = {
      {"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "tessera"}};
  if (!model.parent.empty()) {
    json["parent"] = model.parent;
  }
  return json;
}

std::string event_of(const Ordered& json) { return "data: " + json_text(json) + "\n\n"; }

Ordered number_of(const NamedToken& token) {
  return token.log_probability ? Ordered(*token.log_probability) : Ordered(nullptr);
}

/// What both endpoints have in common: whole answers and numbers of tokens, of their own objects.
class JsonAnswers : public AnswerFormat {
 public:
  std::string whole(const AnswerHead& head, std::span<const AnswerText> texts,
                    const TokenUsage& usage) const override {
    Ordered json = headed(head, whole_object());
    json["choices"] = Ordered::array();
    for (const AnswerText& text : texts) {
      json["choices"].push_back(whole_choice(text));
    }
    json["usage"] = usage_of(usage);
    return json_text(json);
  }

  std::string usage(const AnswerHead& head, const TokenUsage& usage) const override {
    Ordered json = headed(head, event_object());
    json["choices"] = Ordered::array();
    json["usage"] = usage_of(usage);
    return event_of(json);
  }

 protected:
  /// What answers and events call themselves.
  virtual const char* whole_object() const = 0;
  virtual const char* event_object() const = 0;
  virtual Ordered whole_choice(const AnswerText& text) const = 0;

  std::string event(const AnswerHead& head, Ordered choice) const {
    Ordered json = headed(head, event_object());
    json["choices"] = Ordered::array({std::move(choice)});
    return event_of(json);
  }
};

class ChatAnswers : public JsonAnswers {
 public:
  const char* id_prefix() const override { return "chatcmpl"; }

  std::string first(const AnswerHead& head, std::size_t index) const override {
    return event(head, choice({.index = index}, "delta", {{"role", "assistant"}, {"content", ""}}));
  }

  std::string part(const AnswerHead& head, const AnswerText& text) const override {
    Ordered delta = Ordered::object();
    if (!text.text.empty() || text.tokens) {
      delta["content"] = text.text;
    }
    if (!text.thoughts.empty()) {
      delta["reasoning_content"] = text.thoughts;
    }
    if (!text.calls.empty()) {
      delta["tool_calls"] = calls_of(text, true);
    }
    return event(head, choice(text, "delta", delta));
  }

 protected:
  const char* whole_object() const override { return "chat.completion"; }
  const char* event_object() const override { return "chat.completion.chunk"; }
  Ordered whole_choice(const AnswerText& text) const override {
    Ordered message = {{"role", "assistant"}, {"content", text.text}};
    if (!text.thoughts.empty()) {
      message["reasoning_content"] = text.thoughts;
    }
    if (!text.calls.empty()) {
      message["content"] = text.text.empty() ? Ordered(nullptr) : Ordered(text.text);
      message["tool_calls"] = calls_of(text, false);
    }
    return choice(text, "message", message);
  }

 private:
  static Ordered calls_of(const AnswerText& text, bool of_stream) {
    Ordered calls = Ordered::array();
    for (const AnswerCall& one : text.calls) {
      Ordered call = of_stream ? Ordered{{"index", one.index}} : Ordered::object();
      call["id"] = one.id;
      call["type"] = "function";
      call["function"] = {{"name", one.call.name}, {"arguments", one.call.arguments}};
      calls.push_back(std::move(call));
    }
    return calls;
  }

  static Ordered named(const NamedToken& token) {
    Ordered bytes = Ordered::array();
    for (const char byte : token.text) {
      bytes.push_back(static_cast<unsigned char>(byte));
    }
    return {{"token", token.text}, {"logprob", number_of(token)}, {"bytes", std::move(bytes)}};
  }

  static Ordered choice(const AnswerText& text, const char* member, const Ordered& content) {
    Ordered json = {{"index", text.index}, {member, content}};
    if (text.tokens) {
      Ordered list = Ordered::array();
      for (const AnswerToken& token : *text.tokens) {
        Ordered one = named(token.own);
        one["top_logprobs"] = Ordered::array();
        for (const NamedToken& other : token.likeliest) {
          one["top_logprobs"].push_back(named(other));
        }
        list.push_back(std::move(one));
      }
      json["logprobs"] = {{"content", std::move(list)}, {"refusal", nullptr}};
    }
    json["finish_reason"] = reason_of(text);
    return json;
  }
};

class CompletionAnswers : public JsonAnswers {
 public:
  const char* id_prefix() const override { return "cmpl"; }

  std::string first(const AnswerHead&, std::size_t) const override { return {}; }

  std::string part(const AnswerHead& head, const AnswerText& text) const override {
    return event(head, choice(text));
  }

 protected:
  const char* whole_object() const override { return "text_completion"; }
  const char* event_object() const override { return "text_completion"; }
  Ordered whole_choice(const AnswerText& text) const override { return choice(text); }

 private:
  static Ordered likelihoods(const std::vector<AnswerToken>& tokens) {
    Ordered json = {{"tokens", Ordered::array()},
                    {"token_logprobs", Ordered::array()},
                    {"top_logprobs", Ordered::array()},
                    {"text_offset", Ordered::array()}};
    for (const AnswerToken& token : tokens) {
      json["tokens"].push_back(token.own.text);
      json["token_logprobs"].push_back(number_of(token.own));
      // A text of several tokens has the number of the likeliest one of them.
      Ordered likeliest = token.own.log_probability ? Ordered::object() : Ordered(nullptr);
      for (const NamedToken& other : token.likeliest) {
        if (!likeliest.contains(other.text)) {
          likeliest[other.text] = number_of(other);
        }
      }
      json["top_logprobs"].push_back(std::move(likeliest));
      json["text_offset"].push_back(token.offset);
    }
    return json;
  }

  static Ordered choice(const AnswerText& text) {
    return {{"text", text.text},
            {"index", text.index},
            {"logprobs", text.tokens ? likelihoods(*text.tokens) : Ordered(nullptr)},
            {"finish_reason", reason_of(text)}};
  }
};

}  // namespace

std::string TokenNames::name(std::int64_t token) const {
  const auto id = static_cast<tokenize::TokenId>(token);
  if (!tokenizer_->token(id)) {
    return {};  // a row of the model without a token
  }
  tokenize::StreamDecoder decoder(*tokenizer_);
  if (before_ && tokenizer_->token(static_cast<tokenize::TokenId>(*before_))) {
    decoder.start_after({static_cast<tokenize::TokenId>(*before_)});
  }
  std::string text = decoder.add(id);
  return text + decoder.finish();
}

AnswerToken TokenNames::add(std::int64_t token) {
  AnswerToken named{.own = {.text = name(token), .log_probability = std::nullopt},
                    .likeliest = {},
                    .offset = offset_};
  offset_ += count_characters(named.own.text);
  before_ = token;
  return named;
}

AnswerToken TokenNames::add(const text::TokenLikelihoods& token) {
  std::vector<NamedToken> likeliest;
  for (const text::TokenLikelihood& other : token.likeliest) {
    likeliest.push_back({.text = name(other.token), .log_probability = other.log_probability});
  }
  AnswerToken named = add(token.own.token);
  named.own.log_probability = token.own.log_probability;
  named.likeliest = std::move(likeliest);
  return named;
}

AnswerFormat::~AnswerFormat() = default;

const AnswerFormat& chat_format() {
  static const ChatAnswers format;
  return format;
}

const AnswerFormat& completion_format() {
  static const CompletionAnswers format;
  return format;
}

std::string error_json(const std::string& message, const char* type) {
  return json_text(Ordered{{"error", {{"message", message}, {"type", type}, {"code", nullptr}}}});
}

std::string model_json(const ServedModel& model) { return json_text(model_of(model)); }

std::string models_json(std::span<const ServedModel> models) {
  Ordered list = Ordered::array();
  for (const ServedModel& model : models) {
    list.push_back(model_of(model));
  }
  return json_text(Ordered{{"object", "list"}, {"data", std::move(list)}});
}

std::string tokens_json(std::span<const std::int64_t> tokens, std::int64_t longest) {
  return json_text(Ordered{{"count", tokens.size()},
                           {"max_model_len", longest},
                           {"tokens", std::vector<std::int64_t>(tokens.begin(), tokens.end())}});
}

std::string prompt_json(const std::string& text) { return json_text(Ordered{{"prompt", text}}); }

}  // namespace tessera::app
