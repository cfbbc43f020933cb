module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.server;

import :request_fields;
import tessera.base;
import tessera.text;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t max_integer = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t most_likeliest = 20;
constexpr std::size_t most_prompt_tokens = 100'000;

/// At most so many as there may be: more is not an error.
void read_tokens(RequestFields& fields, const char* name, std::int64_t least, std::int64_t& most) {
  const Json* value = fields.find(name);
  const bool huge = value != nullptr && value->is_number_unsigned() &&
                    value->get<std::uint64_t>() > static_cast<std::uint64_t>(max_integer);
  if (value == nullptr || huge) {
    return;
  }
  std::int64_t tokens = most;
  fields.read(name, least, max_integer, tokens);
  most = std::min(most, tokens);
}

void read_stop(RequestFields& fields, std::vector<std::string>& stop) {
  constexpr std::size_t most = 16;
  const Json* value = fields.find("stop");
  if (value == nullptr) {
    return;
  }
  const Json list = value->is_array() ? *value : Json::array({*value});
  stop.clear();
  for (const Json& one : list) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty() || list.size() > most) {
      fields.refuse("stop", fmt::format("a text that is not empty, or at most {} of them", most));
    }
    stop.push_back(one.get<std::string>());
  }
}

void read_end_tokens(RequestFields& fields, std::int64_t vocab, text::GenerationOptions& options) {
  constexpr std::size_t most = 16;
  bool beyond_end = false;
  fields.read("ignore_eos", beyond_end);
  if (beyond_end) {
    options.beyond_end = true;
    options.end_tokens.clear();
  }
  for (const std::int64_t id : fields.read_ids("stop_token_ids", vocab, most)) {
    options.end_tokens.push_back(id);
  }
}

/// An object of ids as texts, and what is added to the logits of each.
void read_logit_bias(RequestFields& fields, std::int64_t vocab, text::SamplingOptions& sampling) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) {
    return;
  }
  const auto refuse = [&] {
    fields.refuse(
        "logit_bias",
        fmt::format("an object of ids from 0 to {} and numbers from -100 to 100", vocab - 1));
  };
  if (!value->is_object()) {
    refuse();
  }
  for (const auto& [name, bias] : value->items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0 || id >= vocab ||
        !bias.is_number()) {
      refuse();
    }
    sampling.logit_bias[id] = bias.get<double>();
  }
}

void read_sampling(RequestFields& fields, std::int64_t vocab, text::GenerationOptions& options) {
  text::SamplingOptions& sampling = options.sampling;
  fields.read("temperature", sampling.temperature);
  fields.read("top_p", sampling.top_p);
  fields.read("min_p", sampling.min_p);
  fields.read("repetition_penalty", sampling.repetition_penalty);
  fields.read("frequency_penalty", sampling.frequency_penalty);
  fields.read("presence_penalty", sampling.presence_penalty);
  fields.read("top_k", 0, std::int64_t{1} << 32, sampling.top_k);
  read_logit_bias(fields, vocab, sampling);
  sampling.check("request");
  auto seed = static_cast<std::int64_t>(options.seed);
  fields.read("seed", std::numeric_limits<std::int64_t>::min(), max_integer, seed);
  options.seed = static_cast<std::uint64_t>(seed);
}

void read_stream(RequestFields& fields, TextRequest& request) {
  fields.read("stream", request.stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) {
    return;
  }
  if (!options->is_object()) {
    fields.refuse("stream_options", "an object");
  }
  RequestFields of_stream(*options, "stream_options.");
  of_stream.read("include_usage", request.stream_usage);
  of_stream.check_rest();
}

/// What requests of all endpoints say (docs/serving.md has these lists).
void read_common(RequestFields& fields, std::int64_t vocab, TextRequest& request) {
  read_sampling(fields, vocab, request.options);
  read_stop(fields, request.options.stop);
  read_end_tokens(fields, vocab, request.options);
  read_stream(fields, request);
  fields.read("n", 1, most_texts, request.count);
  fields.ignore({"model", "user", "safety_identifier", "metadata", "store", "service_tier",
                 "prompt_cache_key"});
}

/// A text, or parts of which each is a text.
std::string content_of(RequestFields& message) {
  const Json* content = message.find("content");
  if (content != nullptr && content->is_string()) {
    return content->get<std::string>();
  }
  std::string text;
  for (const Json& part :
       content != nullptr && content->is_array() ? *content : Json::array({nullptr})) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      message.refuse("content", "a text, or a list of parts of type text");
    }
    RequestFields fields(part, "messages.content.");
    fields.ignore({"type", "text"});
    fields.check_rest();
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<text::ChatMessage> messages_of(RequestFields& fields) {
  const Json* list = fields.find("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.refuse("messages", "a list with at least one message");
  }
  std::vector<text::ChatMessage> messages;
  for (const Json& message : *list) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    if (role != "system" && role != "user" && role != "assistant" && role != "developer") {
      fields.refuse("messages.role", "system, user or assistant");
    }
    RequestFields one(message, "messages.");
    one.ignore({"role"});
    // A member that a client repeats from an answer may be there where it says nothing.
    one.ignore_empty(
        {"tool_calls", "function_call", "refusal", "annotations", "audio", "reasoning_content"});
    std::string content = content_of(one);
    one.check_rest();
    messages.push_back(
        {role == "developer" ? "system" : role.get<std::string>(), std::move(content)});
  }
  return messages;
}

/// A text, its tokens, or a list of either.
std::vector<RequestPrompt> prompts_of(RequestFields& fields, std::int64_t vocab) {
  const Json* value = fields.find("prompt");
  const auto is_id = [&](const Json& one) { return is_count(one, 0, vocab - 1); };
  const auto is_ids = [&](const Json& one) {
    return one.is_array() && !one.empty() && one.size() <= most_prompt_tokens &&
           std::ranges::all_of(one, is_id);
  };
  const auto prompt_in = [&](const Json& one) {
    if (one.is_string() && !one.get_ref<const std::string&>().empty()) {
      return RequestPrompt{.text = one.get<std::string>(), .tokens = {}};
    }
    if (!is_ids(one)) {
      fields.refuse("prompt", fmt::format("a text that is not empty, ids from 0 to {}, or a list "
                                          "of at most {} of either",
                                          vocab - 1, most_texts));
    }
    return RequestPrompt{.text = {}, .tokens = one.get<std::vector<std::int64_t>>()};
  };
  const bool several = value != nullptr && value->is_array() && !value->empty() &&
                       !value->front().is_number() &&
                       value->size() <= static_cast<std::size_t>(most_texts);
  std::vector<RequestPrompt> prompts;
  for (const Json& one : several ? *value : Json::array({value == nullptr ? Json() : *value})) {
    prompts.push_back(prompt_in(one));
  }
  return prompts;
}

}  // namespace

ChatRequest parse_chat_request(std::string_view body, const text::GenerationOptions& defaults,
                               std::int64_t vocab) {
  const Json object = request_object(body);
  RequestFields fields(object);
  ChatRequest request;
  request.options = defaults;
  request.messages = messages_of(fields);
  read_common(fields, vocab, request);
  read_tokens(fields, "max_tokens", 1, request.options.tokens);
  read_tokens(fields, "max_completion_tokens", 1, request.options.tokens);
  bool likelihoods = false;
  fields.read("logprobs", likelihoods);
  std::int64_t likeliest = 0;
  fields.read("top_logprobs", 0, most_likeliest, likeliest);
  if (likelihoods) {
    request.options.likeliest = likeliest;
  } else if (likeliest > 0) {
    fields.refuse("top_logprobs", "0, or logprobs to be true");
  }
  fields.ignore({"parallel_tool_calls"});
  fields.ignore_empty({"tools", "functions"});
  fields.only("response_format", {{"type", "text"}}, "text");
  fields.only("modalities", Json::array({"text"}), "text");
  fields.only("tool_choice", "none", "none");
  fields.only("function_call", "none", "none");
  fields.check_rest();
  return request;
}

CompletionRequest parse_completion_request(std::string_view body,
                                           const text::GenerationOptions& defaults,
                                           std::int64_t vocab) {
  constexpr std::int64_t usual_tokens = 16;
  const Json object = request_object(body);
  RequestFields fields(object);
  CompletionRequest request;
  request.options = defaults;
  request.prompts = prompts_of(fields, vocab);
  read_common(fields, vocab, request);
  if (std::ssize(request.prompts) * request.count > most_texts) {
    fields.refuse("n", fmt::format("at most {} texts for all prompts together", most_texts));
  }
  std::int64_t likeliest = 0;
  if (fields.find("logprobs") != nullptr) {
    fields.read("logprobs", 0, most_likeliest, likeliest);
    request.options.likeliest = likeliest;
  }
  fields.read("echo", request.echo);
  request.options.of_prompt = request.echo && request.options.likeliest.has_value();
  if (request.options.of_prompt && request.stream) {
    fields.refuse("echo", "no stream, or no logprobs");
  }
  if (fields.find("max_tokens") == nullptr) {
    request.options.tokens = std::min(request.options.tokens, usual_tokens);
  }
  read_tokens(fields, "max_tokens", request.options.of_prompt ? 0 : 1, request.options.tokens);
  fields.ignore_empty({"suffix"});
  fields.only("best_of", 1, "1");
  fields.check_rest();
  return request;
}

TokenizeRequest parse_tokenize_request(std::string_view body) {
  const Json object = request_object(body);
  RequestFields fields(object);
  TokenizeRequest request;
  if (fields.find("prompt") != nullptr) {
    fields.read("prompt", request.text.emplace());
    fields.read("add_special_tokens", request.add_special);
  } else {
    request.messages = messages_of(fields);
    fields.only("add_generation_prompt", true, "true");
  }
  fields.ignore({"model"});
  fields.check_rest();
  return request;
}

std::vector<std::int64_t> parse_detokenize_request(std::string_view body, std::int64_t vocab) {
  const Json object = request_object(body);
  RequestFields fields(object);
  std::vector<std::int64_t> ids = fields.read_ids("tokens", vocab, most_prompt_tokens);
  if (ids.empty()) {
    fields.refuse("tokens", "a list with at least one id");
  }
  fields.ignore({"model"});
  fields.check_rest();
  return ids;
}

}  // namespace tessera::app
