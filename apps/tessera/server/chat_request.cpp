module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.text;

namespace tessera::app {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::int64_t max_integer = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(const std::string& name, const std::string& expected) {
  fail_input({.thing = shown(name, 60), .wrong = "has a wrong value", .expected = expected});
}

/// The member, where it is there and not null.
const Json* given(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

void read_number(const Json& body, const char* name, double& into) {
  if (const Json* value = given(body, name)) {
    if (!value->is_number()) {
      refuse(name, "a number");
    }
    into = value->get<double>();
  }
}

void read_flag(const Json& body, const char* name, bool& into) {
  if (const Json* value = given(body, name)) {
    if (!value->is_boolean()) {
      refuse(name, "true or false");
    }
    into = value->get<bool>();
  }
}

/// A whole number that 64 bits with a sign do not have.
bool is_huge(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() > static_cast<std::uint64_t>(max_integer);
}

/// Whether it is a whole number in this range.
bool is_count(const Json& value, std::int64_t low, std::int64_t high) {
  return value.is_number_integer() && !is_huge(value) && value.get<std::int64_t>() >= low &&
         value.get<std::int64_t>() <= high;
}

void read_count(const Json& body, const char* name, std::int64_t low, std::int64_t high,
                std::int64_t& into) {
  if (const Json* value = given(body, name)) {
    if (!is_count(*value, low, high)) {
      refuse(name, fmt::format("a whole number from {} to {}", low, high));
    }
    into = value->get<std::int64_t>();
  }
}

/// At most so many as there may be: more is not an error.
void read_tokens(const Json& body, const char* name, std::int64_t& most) {
  const Json* value = given(body, name);
  if (value == nullptr || is_huge(*value)) {
    return;
  }
  std::int64_t tokens = most;
  read_count(body, name, 1, max_integer, tokens);
  most = std::min(most, tokens);
}

/// Error: the object has a member that is none of these. Null is as if it was not there.
void check_members(const Json& object, const std::string& thing,
                   std::span<const std::string_view> known) {
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null() && std::ranges::find(known, name) == known.end()) {
      fail_input({.thing = thing + shown(name, 60),
                  .wrong = "is not supported",
                  .advice = "leave it out"});
    }
  }
}

/// A text, or parts of which each is a text.
std::string content_of(const Json& message) {
  const Json* content = given(message, "content");
  if (content != nullptr && content->is_string()) {
    return content->get<std::string>();
  }
  std::string text;
  for (const Json& part :
       content != nullptr && content->is_array() ? *content : Json::array({nullptr})) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      refuse("messages.content", "a text, or a list of parts of type text");
    }
    check_members(part, "messages.content.", std::array<std::string_view, 2>{"type", "text"});
    text += part["text"].get<std::string>();
  }
  return text;
}

/// A member that a client repeats from an answer may be there where it says nothing.
void check_message(const Json& message) {
  Json rest = message;
  for (const char* const name :
       {"tool_calls", "function_call", "refusal", "annotations", "audio", "reasoning_content"}) {
    if (const Json* value = given(rest, name); value != nullptr && value->empty()) {
      rest.erase(name);
    }
  }
  check_members(rest, "messages.", std::array<std::string_view, 2>{"role", "content"});
}

std::vector<text::ChatMessage> messages_of(const Json& body) {
  const Json* list = given(body, "messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    refuse("messages", "a list with at least one message");
  }
  std::vector<text::ChatMessage> messages;
  for (const Json& message : *list) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    if (role != "system" && role != "user" && role != "assistant" && role != "developer") {
      refuse("messages.role", "system, user or assistant");
    }
    check_message(message);
    messages.push_back(
        {role == "developer" ? "system" : role.get<std::string>(), content_of(message)});
  }
  return messages;
}

void read_stop(const Json& body, std::vector<std::string>& stop) {
  constexpr std::size_t most = 16;
  const Json* value = given(body, "stop");
  if (value == nullptr) {
    return;
  }
  const Json list = value->is_array() ? *value : Json::array({*value});
  stop.clear();
  for (const Json& one : list) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty() || list.size() > most) {
      refuse("stop", fmt::format("a text that is not empty, or at most {} of them", most));
    }
    stop.push_back(one.get<std::string>());
  }
}

void read_end_tokens(const Json& body, std::int64_t vocab, text::GenerationOptions& options) {
  constexpr std::size_t most = 16;
  bool beyond_end = false;
  read_flag(body, "ignore_eos", beyond_end);
  if (beyond_end) {
    options.beyond_end = true;
    options.end_tokens.clear();
  }
  const Json* list = given(body, "stop_token_ids");
  if (list == nullptr) {
    return;
  }
  const bool fits =
      list->is_array() && list->size() <= most &&
      std::ranges::all_of(*list, [&](const Json& id) { return is_count(id, 0, vocab - 1); });
  if (!fits) {
    refuse("stop_token_ids", fmt::format("a list of at most {} ids from 0 to {}", most, vocab - 1));
  }
  for (const Json& id : *list) {
    options.end_tokens.push_back(id.get<std::int64_t>());
  }
}

/// Nothing is ignored that would change the answer (docs/serving.md has these lists).
void check_supported(const Json& body) {
  constexpr std::array<std::string_view, 18> read = {"messages",
                                                     "temperature",
                                                     "top_p",
                                                     "top_k",
                                                     "min_p",
                                                     "repetition_penalty",
                                                     "max_tokens",
                                                     "max_completion_tokens",
                                                     "seed",
                                                     "stop",
                                                     "stop_token_ids",
                                                     "ignore_eos",
                                                     "stream",
                                                     "stream_options",
                                                     "n",
                                                     "response_format",
                                                     "modalities",
                                                     "tool_choice"};
  constexpr std::array<std::string_view, 8> without_effect = {
      "model", "user",         "safety_identifier", "metadata",
      "store", "service_tier", "prompt_cache_key",  "parallel_tool_calls"};
  constexpr std::array<std::string_view, 8> only_empty = {
      "tools",    "functions",    "function_call",     "logit_bias",
      "logprobs", "top_logprobs", "frequency_penalty", "presence_penalty"};
  Json rest = body;
  for (const std::string_view name : only_empty) {
    const Json* value = given(rest, name.data());
    if (value != nullptr && (*value == 0 || *value == false || value->empty() ||
                             (name == "function_call" && *value == "none"))) {
      rest.erase(std::string(name));
    }
  }
  std::vector<std::string_view> known(read.begin(), read.end());
  known.insert(known.end(), without_effect.begin(), without_effect.end());
  check_members(rest, "", known);
  const auto check_only = [&](const char* name, const Json& expected, const char* text) {
    const Json* value = given(body, name);
    if (value != nullptr && *value != expected) {
      fail_input({.thing = name, .wrong = "is not supported", .expected = text});
    }
  };
  check_only("response_format", {{"type", "text"}}, "text");
  check_only("modalities", Json::array({"text"}), "text");
  check_only("tool_choice", "none", "none");
  check_only("n", 1, "1");
}

const char* reason_of(text::TextEnd end) {
  return end == text::TextEnd::token || end == text::TextEnd::stop ? "stop" : "length";
}

Ordered usage_of(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion}};
}

Ordered headed(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Ordered model_of(const AnswerHead& head) {
  return {
      {"id", head.model}, {"object", "model"}, {"created", head.created}, {"owned_by", "tessera"}};
}

std::string event_of(const Ordered& json) { return "data: " + json_text(json) + "\n\n"; }

Ordered chunk(const AnswerHead& head, const Ordered& delta, const Ordered& reason) {
  Ordered json = headed(head, "chat.completion.chunk");
  json["choices"] =
      Ordered::array({Ordered{{"index", 0}, {"delta", delta}, {"finish_reason", reason}}});
  return json;
}

}  // namespace

ChatRequest parse_chat_request(std::string_view text, const text::GenerationOptions& defaults,
                               std::int64_t vocab) {
  const ParsedJson parsed =
      parse_json_object(text, {.bytes = text.size(), .values = 100'000, .depth = 16});
  if (!parsed.problem.empty()) {
    fail_input({.thing = "request", .wrong = parsed.problem});
  }
  const Json& body = parsed.value;
  check_supported(body);
  ChatRequest request{.messages = messages_of(body), .options = defaults};
  text::GenerationOptions& options = request.options;
  read_number(body, "temperature", options.sampling.temperature);
  read_number(body, "top_p", options.sampling.top_p);
  read_number(body, "min_p", options.sampling.min_p);
  read_number(body, "repetition_penalty", options.sampling.repetition_penalty);
  read_count(body, "top_k", 0, std::int64_t{1} << 32, options.sampling.top_k);
  options.sampling.check("request");
  read_tokens(body, "max_tokens", options.tokens);
  read_tokens(body, "max_completion_tokens", options.tokens);
  auto seed = static_cast<std::int64_t>(options.seed);
  read_count(body, "seed", std::numeric_limits<std::int64_t>::min(),
             std::numeric_limits<std::int64_t>::max(), seed);
  options.seed = static_cast<std::uint64_t>(seed);
  read_stop(body, options.stop);
  read_end_tokens(body, vocab, options);
  read_flag(body, "stream", request.stream);
  if (const Json* stream = given(body, "stream_options")) {
    if (!stream->is_object()) {
      refuse("stream_options", "an object");
    }
    check_members(*stream, "stream_options.", std::array<std::string_view, 1>{"include_usage"});
    read_flag(*stream, "include_usage", request.stream_usage);
  }
  return request;
}

std::string answer_json(const AnswerHead& head, const text::GeneratedText& text,
                        const TokenUsage& usage) {
  Ordered json = headed(head, "chat.completion");
  const Ordered message = {{"role", "assistant"}, {"content", text.text}};
  json["choices"] = Ordered::array(
      {Ordered{{"index", 0}, {"message", message}, {"finish_reason", reason_of(text.end)}}});
  json["usage"] = usage_of(usage);
  return json_text(json);
}

std::string first_event(const AnswerHead& head) {
  return event_of(chunk(head, {{"role", "assistant"}, {"content", ""}}, nullptr));
}

std::string part_event(const AnswerHead& head, const std::string& part) {
  return event_of(chunk(head, {{"content", part}}, nullptr));
}

std::string last_event(const AnswerHead& head, text::TextEnd end, const TokenUsage* usage) {
  std::string events = event_of(chunk(head, Ordered::object(), reason_of(end)));
  if (usage != nullptr) {
    Ordered json = headed(head, "chat.completion.chunk");
    json["choices"] = Ordered::array();
    json["usage"] = usage_of(*usage);
    events += event_of(json);
  }
  return events + "data: [DONE]\n\n";
}

std::string error_json(const std::string& message, const char* type) {
  return json_text(Ordered{{"error", {{"message", message}, {"type", type}, {"code", nullptr}}}});
}

std::string model_json(const AnswerHead& head) { return json_text(model_of(head)); }

std::string models_json(const AnswerHead& head) {
  return json_text(Ordered{{"object", "list"}, {"data", Ordered::array({model_of(head)})}});
}

}  // namespace tessera::app
