module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.app.generation;

namespace tessera::app {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

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

void read_count(const Json& body, const char* name, std::int64_t low, std::int64_t high,
                std::int64_t& into) {
  if (const Json* value = given(body, name)) {
    if (!value->is_number_integer() || *value < low || *value > high) {
      refuse(name, fmt::format("a whole number from {} to {}", low, high));
    }
    into = value->get<std::int64_t>();
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
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<ChatMessage> messages_of(const Json& body) {
  const Json* list = given(body, "messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    refuse("messages", "a list with at least one message");
  }
  std::vector<ChatMessage> messages;
  for (const Json& message : *list) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    if (role != "system" && role != "user" && role != "assistant" && role != "developer") {
      refuse("messages.role", "system, user or assistant");
    }
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

/// Nothing is ignored that would change the answer.
void check_supported(const Json& body) {
  for (const char* const name :
       {"tools", "tool_choice", "functions", "function_call", "logit_bias", "logprobs",
        "top_logprobs", "frequency_penalty", "presence_penalty", "audio", "prediction",
        "modalities", "web_search_options"}) {
    const Json* value = given(body, name);
    const bool nothing = value == nullptr || *value == 0 || *value == false || value->empty() ||
                         (std::string_view(name) == "tool_choice" && *value == "none");
    if (!nothing) {
      fail_input({.thing = name, .wrong = "is not supported", .advice = "leave it out"});
    }
  }
  const Json* format = given(body, "response_format");
  if (format != nullptr && *format != Json{{"type", "text"}}) {
    fail_input({.thing = "response_format", .wrong = "is not supported", .expected = "text"});
  }
  std::int64_t count = 1;
  read_count(body, "n", 1, 1, count);
}

const char* reason_of(TextEnd end) {
  return end == TextEnd::token || end == TextEnd::stop ? "stop" : "length";
}

Ordered usage_of(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion}};
}

Ordered headed(const AnswerHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

std::string event_of(const Ordered& json) { return "data: " + json_text(json) + "\n\n"; }

Ordered chunk(const AnswerHead& head, const Ordered& delta, const Ordered& reason) {
  Ordered json = headed(head, "chat.completion.chunk");
  json["choices"] =
      Ordered::array({Ordered{{"index", 0}, {"delta", delta}, {"finish_reason", reason}}});
  return json;
}

}  // namespace

ChatRequest parse_chat_request(std::string_view text, const GenerationOptions& defaults) {
  const ParsedJson parsed = parse_json_object(text);
  if (!parsed.problem.empty()) {
    fail_input({.thing = "request", .wrong = parsed.problem});
  }
  const Json& body = parsed.value;
  check_supported(body);
  ChatRequest request{.messages = messages_of(body), .options = defaults};
  GenerationOptions& options = request.options;
  read_number(body, "temperature", options.sampling.temperature);
  read_number(body, "top_p", options.sampling.top_p);
  read_number(body, "repetition_penalty", options.sampling.repetition_penalty);
  read_count(body, "top_k", 0, std::int64_t{1} << 32, options.sampling.top_k);
  options.sampling.check("request");
  read_count(body, "max_tokens", 1, defaults.tokens, options.tokens);
  read_count(body, "max_completion_tokens", 1, defaults.tokens, options.tokens);
  auto seed = static_cast<std::int64_t>(options.seed);
  read_count(body, "seed", std::numeric_limits<std::int64_t>::min(),
             std::numeric_limits<std::int64_t>::max(), seed);
  options.seed = static_cast<std::uint64_t>(seed);
  read_stop(body, options.stop);
  read_flag(body, "stream", request.stream);
  if (const Json* stream = given(body, "stream_options")) {
    if (!stream->is_object()) {
      refuse("stream_options", "an object");
    }
    read_flag(*stream, "include_usage", request.stream_usage);
  }
  return request;
}

std::string answer_json(const AnswerHead& head, const GeneratedText& text,
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

std::string last_event(const AnswerHead& head, TextEnd end, const TokenUsage* usage) {
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

std::string models_json(const AnswerHead& head) {
  const Ordered model = {
      {"id", head.model}, {"object", "model"}, {"created", head.created}, {"owned_by", "tessera"}};
  return json_text(Ordered{{"object", "list"}, {"data", Ordered::array({model})}});
}

}  // namespace tessera::app
