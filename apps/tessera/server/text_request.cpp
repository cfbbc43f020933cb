module;
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
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
using Ordered = nlohmann::ordered_json;

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

/// A schema as it was written: the order of its members is that of answers.
std::string text_of(const Ordered& schema, const Json& there, RequestFields& fields,
                    const char* name) {
  if (!there.is_object() && !there.is_boolean()) {
    fields.refuse(name, "a JSON schema");
  }
  return json_text(Ordered{{"schema", schema}}["schema"]);
}

/// `body`: the whole request.
void read_response_format(RequestFields& fields, std::string_view body, TextRequest& request) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) {
    return;
  }
  if (!format->is_object()) {
    fields.refuse("response_format", "an object");
  }
  const Ordered ordered = parse_ordered_json(body)["response_format"];
  RequestFields of_format(*format, "response_format.");
  std::string type;
  of_format.read("type", type);
  const auto kinds = {"text", "json_object", "json_schema"};
  if (std::ranges::find(kinds, type) == kinds.end()) {
    of_format.refuse("type", "text, json_object or json_schema");
  }
  if (type == "json_schema") {
    const Json* described = of_format.find("json_schema");
    if (described == nullptr || !described->is_object()) {
      of_format.refuse("json_schema", "an object with a schema");
    }
    RequestFields of_schema(*described, "response_format.json_schema.");
    of_schema.ignore({"name", "description", "strict"});
    const Json* schema = of_schema.find("schema");
    request.grammar = {.kind = RequestGrammar::Kind::json_schema,
                       .text = text_of(ordered["json_schema"].value("schema", Ordered()),
                                       schema == nullptr ? Json() : *schema, of_schema, "schema"),
                       .place = "response_format.json_schema.schema"};
    of_schema.check_rest();
  } else if (type == "json_object") {
    request.grammar = {.kind = RequestGrammar::Kind::json_object, .place = "response_format"};
    if (const Json* schema = of_format.find("schema")) {
      request.grammar = {.kind = RequestGrammar::Kind::json_schema,
                         .text = text_of(ordered["schema"], *schema, of_format, "schema"),
                         .place = "response_format.schema"};
    }
  }
  of_format.check_rest();
}

/// What texts must follow: at most one of three fields says it.
void read_grammar(RequestFields& fields, std::string_view body, TextRequest& request) {
  read_response_format(fields, body, request);
  const auto only_one = [&](const char* name) {
    if (request.grammar) {
      fields.refuse(name, fmt::format("no {} beside it", request.grammar->place));
    }
  };
  if (const Json* schema = fields.find("json_schema")) {
    only_one("json_schema");
    request.grammar = {
        .kind = RequestGrammar::Kind::json_schema,
        .text = text_of(parse_ordered_json(body)["json_schema"], *schema, fields, "json_schema"),
        .place = "json_schema"};
  }
  if (fields.find("grammar") != nullptr) {
    only_one("grammar");
    request.grammar = {.kind = RequestGrammar::Kind::gbnf, .place = "grammar"};
    fields.read("grammar", request.grammar->text);
  }
}

/// What requests of all endpoints say (docs/serving.md has these lists).
void read_common(RequestFields& fields, std::string_view body, std::int64_t vocab,
                 TextRequest& request) {
  read_grammar(fields, body, request);
  read_sampling(fields, vocab, request.options);
  read_stop(fields, request.options.stop);
  read_end_tokens(fields, vocab, request.options);
  read_stream(fields, request);
  fields.read("n", 1, most_texts, request.count);
  fields.read("model", request.model);
  fields.ignore(
      {"user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key"});
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

/// The calls of tools that an answer had, for the template.
Ordered calls_of(const Json& list, const Ordered& written) {
  if (!list.is_array() || list.empty()) {
    fail_input({.thing = "messages.tool_calls", .wrong = "must be a list of calls"});
  }
  Ordered calls = Ordered::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& call = list[i];
    const Json none;
    if (!call.is_object()) {
      fail_input({.thing = "messages.tool_calls", .wrong = "must be a list of calls"});
    }
    RequestFields fields(call, "messages.tool_calls.");
    fields.ignore({"index"});
    fields.only("type", "function", "function");
    std::string id;
    fields.read("id", id);
    const Json* function = fields.find("function");
    if (function == nullptr || !function->is_object()) {
      fields.refuse("function", "an object");
    }
    fields.check_rest();
    RequestFields of_function(*function, "messages.tool_calls.function.");
    std::string name;
    of_function.read("name", name);
    const Json* arguments = of_function.find("arguments");
    const bool as_text = arguments != nullptr && arguments->is_string();
    const bool is_object =
        as_text ? parse_json_object(arguments->get_ref<const std::string&>()).problem.empty()
                : arguments != nullptr && arguments->is_object();
    if (name.empty() || !is_object) {
      of_function.refuse(name.empty() ? "name" : "arguments",
                         name.empty() ? "a text" : "a JSON object, or one as a text");
    }
    of_function.check_rest();
    calls.push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", written[i]["function"]["arguments"]}}}});
  }
  return calls;
}

/// What a message has besides its role and content, as the template gets it.
std::string members_of(RequestFields& message, const std::string& role, const Ordered& written,
                       std::map<std::string, std::string>& names_of_calls) {
  Ordered members = Ordered::object();
  if (role == "assistant") {
    if (const Json* calls = message.find("tool_calls"); calls != nullptr && !calls->empty()) {
      members["tool_calls"] = calls_of(*calls, written["tool_calls"]);
      for (const Ordered& call : members["tool_calls"]) {
        names_of_calls[call["id"].get<std::string>()] = call["function"]["name"].get<std::string>();
      }
    }
    // Of an answer of this server, or of others, by the names that templates have for it. That of
    // gpt-oss takes no thoughts beside a text with calls.
    std::string thoughts;
    message.read("reasoning_content", thoughts);
    const Json* const content = message.find("content");
    if (!thoughts.empty() && (!members.contains("tool_calls") || content == nullptr ||
                              content->empty() || *content == "")) {
      members["reasoning_content"] = thoughts;
      members["thinking"] = thoughts;
    }
  } else if (role == "tool") {
    std::string id;
    std::string name;
    message.read("tool_call_id", id);
    message.read("name", name);
    members["tool_call_id"] = id;
    members["name"] = name.empty() ? names_of_calls[id] : name;
  }
  return members.empty() ? std::string() : json_text(members);
}

/// `body`: the whole request.
std::vector<text::ChatMessage> messages_of(RequestFields& fields, std::string_view body) {
  const Json* list = fields.find("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.refuse("messages", "a list with at least one message");
  }
  const Ordered written = parse_ordered_json(body)["messages"];
  std::map<std::string, std::string> names_of_calls;
  std::vector<text::ChatMessage> messages;
  for (const Json& message : *list) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    const auto roles = {"system", "user", "assistant", "developer", "tool"};
    if (std::ranges::find(roles, role) == roles.end()) {
      fields.refuse("messages.role", "system, user, assistant or tool");
    }
    RequestFields one(message, "messages.");
    one.ignore({"role"});
    // A member that a client repeats from an answer may be there where it says nothing.
    one.ignore_empty(
        {"tool_calls", "function_call", "refusal", "annotations", "audio", "reasoning_content"});
    std::string members =
        members_of(one, role.get<std::string>(), written[messages.size()], names_of_calls);
    // A message with calls need not have a text.
    const bool silent = role == "assistant" && !members.empty() && one.find("content") == nullptr;
    std::string content = silent ? std::string() : content_of(one);
    one.check_rest();
    messages.push_back({role == "developer" ? "system" : role.get<std::string>(),
                        std::move(content), std::move(members)});
  }
  return messages;
}

/// The tools of a request. `body`: all of it.
std::vector<text::Tool> tools_of(RequestFields& fields, std::string_view body) {
  constexpr std::size_t most_tools = 128;
  constexpr std::size_t longest_name = 64;
  const Json* list = fields.find("tools");
  if (list == nullptr || list->empty()) {
    return {};
  }
  if (!list->is_array() || list->size() > most_tools) {
    fields.refuse("tools", fmt::format("a list of at most {} tools", most_tools));
  }
  const Ordered written = parse_ordered_json(body)["tools"];
  std::vector<text::Tool> tools;
  for (const Json& tool : *list) {
    const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
    if (!function.is_object() || tool.value("type", Json()) != "function") {
      fields.refuse("tools", "tools of type function");
    }
    RequestFields of_tool(tool, "tools.");
    of_tool.ignore({"type", "function"});
    of_tool.check_rest();
    RequestFields of_function(function, "tools.function.");
    of_function.ignore({"description", "strict"});
    text::Tool one;
    of_function.read("name", one.name);
    const bool is_name = !one.name.empty() && one.name.size() <= longest_name &&
                         std::ranges::all_of(one.name, [](unsigned char c) {
                           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
                         });
    if (!is_name || std::ranges::find(tools, one.name, &text::Tool::name) != tools.end()) {
      of_function.refuse(
          "name", fmt::format("another one of at most {} letters, digits, _ and -", longest_name));
    }
    if (const Json* parameters = of_function.find("parameters")) {
      one.parameters = text_of(written[tools.size()]["function"]["parameters"], *parameters,
                               of_function, "parameters");
    }
    of_function.check_rest();
    tools.push_back(std::move(one));
  }
  return tools;
}

/// Which tools the answer may or must call.
void read_tools(RequestFields& fields, std::string_view body, ChatRequest& request) {
  request.callable = tools_of(fields, body);
  fields.read("parallel_tool_calls", request.several_calls);
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && choice->is_object()) {
    RequestFields of_choice(*choice, "tool_choice.");
    of_choice.only("type", "function", "function");
    const Json* function = of_choice.find("function");
    std::string name;
    if (function != nullptr && function->is_object()) {
      RequestFields(*function, "tool_choice.function.").read("name", name);
    }
    std::erase_if(request.callable, [&](const text::Tool& tool) { return tool.name != name; });
    if (request.callable.empty()) {
      of_choice.refuse("function.name", "the name of one of the tools");
    }
    of_choice.check_rest();
    request.must_call = true;
    request.several_calls = false;
  } else if (choice != nullptr && *choice == "required") {
    if (request.callable.empty()) {
      fields.refuse("tool_choice", "tools to choose from");
    }
    request.must_call = true;
  } else if (choice != nullptr && *choice == "none") {
    request.callable.clear();
  } else if (choice != nullptr && *choice != "auto") {
    fields.refuse("tool_choice", "none, auto, required, or a function");
  }
  if (request.callable.empty()) {
    return;
  }
  if (request.grammar) {
    fields.refuse("tools", fmt::format("no {} beside it", request.grammar->place));
  }
  request.tools = json_text(parse_ordered_json(body)["tools"]);
}

/// A text, its tokens, or a list of either.
std::vector<RequestPrompt> prompts_of(RequestFields& fields, const char* name, std::int64_t vocab,
                                      std::int64_t most) {
  const Json* value = fields.find(name);
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
      fields.refuse(name, fmt::format("a text that is not empty, ids from 0 to {}, or a list "
                                      "of at most {} of either",
                                      vocab - 1, most));
    }
    return RequestPrompt{.text = {}, .tokens = one.get<std::vector<std::int64_t>>()};
  };
  const bool several = value != nullptr && value->is_array() && !value->empty() &&
                       !value->front().is_number() &&
                       value->size() <= static_cast<std::size_t>(most);
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
  request.messages = messages_of(fields, body);
  read_common(fields, body, vocab, request);
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
  read_tools(fields, body, request);
  fields.ignore_empty({"functions"});
  fields.only("modalities", Json::array({"text"}), "text");
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
  request.prompts = prompts_of(fields, "prompt", vocab, most_texts);
  read_common(fields, body, vocab, request);
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
    request.messages = messages_of(fields, body);
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

EmbeddingRequest parse_embedding_request(std::string_view body, std::int64_t vocab,
                                         std::int64_t features) {
  const Json object = request_object(body);
  RequestFields fields(object);
  EmbeddingRequest request;
  fields.read("model", request.model);
  request.inputs = prompts_of(fields, "input", vocab, most_inputs);
  fields.read("dimensions", 1, features, request.dimensions);
  std::string format = "float";
  fields.read("encoding_format", format);
  request.base64 = format == "base64";
  if (!request.base64 && format != "float") {
    fields.refuse("encoding_format", "float or base64");
  }
  fields.ignore({"user"});
  fields.check_rest();
  return request;
}

AdapterRequest parse_load_request(std::string_view body) {
  const Json object = request_object(body);
  RequestFields fields(object);
  AdapterRequest request;
  fields.read("lora_name", request.name);
  fields.read("lora_path", request.path);
  if (request.path.empty()) {
    fields.refuse("lora_path", "a folder");
  }
  fields.ignore_empty({"load_inplace", "base_model_name"});
  fields.check_rest();
  return request;
}

AdapterRequest parse_unload_request(std::string_view body) {
  const Json object = request_object(body);
  RequestFields fields(object);
  AdapterRequest request;
  fields.read("lora_name", request.name);
  fields.ignore({"lora_int_id"});
  fields.check_rest();
  return request;
}

}  // namespace tessera::app
