// What requests may say: OpenAI's fields, and what is refused by name.
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.text;
import tessera.app.server;

using generation_test::trained;
using nlohmann::json;
using server_test::ask;
using server_test::error_in;
using server_test::post;
using server_test::Response;
using server_test::Served;
using tessera::app::ChatRequest;
using trainer_test::has;
using trainer_test::input_error;

namespace {

constexpr std::int64_t vocab = 100;

json question(const std::string& content, const json& more = json::object()) {
  json request = {{"messages", {{{"role", "user"}, {"content", content}}}}};
  request.update(more);
  return request;
}

ChatRequest parsed(const json& more) {
  tessera::text::GenerationOptions defaults;
  defaults.tokens = 20;
  defaults.end_tokens = {7};
  return tessera::app::parse_chat_request(question("a", more).dump(), defaults, vocab);
}

void refused(const json& more, const std::string& part) {
  INFO(more.dump());
  has(input_error([&] { static_cast<void>(parsed(more)); }), part);
}

std::string content_of(const Response& response) {
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body)["choices"][0]["message"]["content"].get<std::string>();
}

}  // namespace

TEST_CASE("fields are read, refused by name, or have no effect") {
  const ChatRequest read = parsed({{"temperature", 0.5},
                                   {"top_p", 0.25},
                                   {"top_k", 3},
                                   {"min_p", 0.125},
                                   {"repetition_penalty", 2},
                                   {"seed", -1},
                                   {"frequency_penalty", 0.5},
                                   {"presence_penalty", -1},
                                   {"logit_bias", {{"5", 1}, {"99", -100}}},
                                   {"logprobs", true},
                                   {"top_logprobs", 3},
                                   {"n", 2},
                                   {"stop", {"x", "y"}},
                                   {"stop_token_ids", {3, 99}},
                                   {"stream", true},
                                   {"stream_options", {{"include_usage", true}}}});
  CHECK(read.options.sampling.temperature == 0.5);
  CHECK(read.options.sampling.top_p == 0.25);
  CHECK(read.options.sampling.top_k == 3);
  CHECK(read.options.sampling.min_p == 0.125);
  CHECK(read.options.sampling.repetition_penalty == 2);
  CHECK(read.options.stop == std::vector<std::string>{"x", "y"});
  CHECK(read.options.end_tokens == std::vector<std::int64_t>{7, 3, 99});
  CHECK(!read.options.beyond_end);
  CHECK(read.options.sampling.frequency_penalty == 0.5);
  CHECK(read.options.sampling.presence_penalty == -1);
  CHECK(read.options.sampling.logit_bias == std::map<std::int64_t, double>{{5, 1}, {99, -100}});
  CHECK(read.options.likeliest == 3);
  CHECK(!read.options.of_prompt);
  CHECK(read.count == 2);
  CHECK(read.stream);
  CHECK(read.stream_usage);
  const ChatRequest beyond = parsed({{"ignore_eos", true}, {"stop_token_ids", {3}}});
  CHECK(beyond.options.beyond_end);
  CHECK(beyond.options.end_tokens == std::vector<std::int64_t>{3});
  // Without an effect, or with the value that has none; null is nothing.
  for (const json& more : std::vector<json>{{{"model", "any"}},
                                            {{"user", "a"}},
                                            {{"safety_identifier", "a"}},
                                            {{"metadata", {{"a", "b"}}}},
                                            {{"store", true}},
                                            {{"service_tier", "auto"}},
                                            {{"prompt_cache_key", "a"}},
                                            {{"parallel_tool_calls", true}},
                                            {{"n", 1}},
                                            {{"tools", json::array()}},
                                            {{"tool_choice", "none"}},
                                            {{"tool_choice", "auto"}},
                                            {{"function_call", "none"}},
                                            {{"logit_bias", json::object()}},
                                            {{"logprobs", false}},
                                            {{"top_logprobs", 0}},
                                            {{"presence_penalty", 0}},
                                            {{"frequency_penalty", 0.0}},
                                            {{"modalities", {"text"}}},
                                            {{"response_format", {{"type", "text"}}}},
                                            {{"guided_json", nullptr}},
                                            {{"max_tokens", nullptr}}}) {
    INFO(more.dump());
    CHECK(parsed(more).options.tokens == 20);
  }
  for (const char* name :
       {"guided_json", "guided_regex", "reasoning_effort", "chat_template_kwargs", "min_tokens",
        "best_of", "echo", "typical_p", "mirostat", "bad_words", "add_generation_prompt",
        "prediction", "audio", "web_search_options", "verbosity", "Temperature", "x y"}) {
    refused({{name, 1}}, std::string(name) + ": is not supported; leave it out");
  }
  refused({{"modalities", {"text", "audio"}}}, "modalities: is not supported");
  refused({{"n", 0}}, "n: has a wrong value (expected a whole number from 1 to 128)");
  refused({{"n", 129}}, "n: has a wrong value");
  refused({{"top_logprobs", 2}},
          "top_logprobs: has a wrong value (expected 0, or logprobs to be true)");
  refused({{"logprobs", true}, {"top_logprobs", 21}}, "top_logprobs: has a wrong value");
  refused({{"frequency_penalty", 2.5}},
          "frequency_penalty is out of range (expected -2 to 2, got 2.5)");
  refused({{"presence_penalty", -3}}, "presence_penalty is out of range");
  refused({{"logit_bias", {{"5", 101}}}},
          "logit_bias is out of range (expected -100 to 100, got 101)");
  for (const json& bias : std::vector<json>{
           {{"100", 1}}, {{"-1", 1}}, {{"5x", 1}}, {{"", 1}}, {{"5", "1"}}, json::array({1})}) {
    refused({{"logit_bias", bias}},
            "logit_bias: has a wrong value (expected an object of ids from 0 to 99");
  }
  refused({{"stream_options", {{"x", true}}}}, "stream_options.x: is not supported");
  refused({{"stream_options", 1}}, "stream_options: has a wrong value");
}

TEST_CASE("values of fields are of their types and within their ranges") {
  refused({{"temperature", "hot"}}, "temperature: has a wrong value (expected a number)");
  refused({{"temperature", -1}}, "temperature is out of range");
  refused({{"top_p", 0}}, "top_p is out of range");
  refused({{"min_p", 1.5}}, "min_p is out of range");
  refused({{"min_p", -0.1}}, "min_p is out of range");
  refused({{"top_k", -1}}, "top_k: has a wrong value");
  refused({{"stop", json::array({""})}}, "stop: has a wrong value");
  refused({{"stream", 1}}, "stream: has a wrong value");
  refused({{"ignore_eos", 1}}, "ignore_eos: has a wrong value");
  for (const json& ids :
       std::vector<json>{5, json::array({vocab}), json::array({-1}), json::array({1.5}),
                         json(std::vector<int>(17, 1)), json::array({18446744073709551615U})}) {
    refused({{"stop_token_ids", ids}}, "stop_token_ids: has a wrong value");
  }
  // More tokens than the limit are the limit.
  CHECK(parsed({{"max_tokens", 5}}).options.tokens == 5);
  CHECK(parsed({{"max_tokens", 21}}).options.tokens == 20);
  CHECK(parsed({{"max_tokens", 18446744073709551615U}}).options.tokens == 20);
  CHECK(parsed({{"max_completion_tokens", 6}, {"max_tokens", 9}}).options.tokens == 6);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    for (const json& value : std::vector<json>{0, -1, 1.5, "5", true, 1e30}) {
      refused({{name, value}}, std::string(name) + ": has a wrong value");
    }
  }
  // Messages.
  refused({{"messages", json::array()}}, "messages: has a wrong value");
  const auto message = [](json one) { return json{{"messages", json::array({std::move(one)})}}; };
  refused(message({{"role", "x"}, {"content", "a"}}), "messages.role");
  refused(message({{"role", "tool"}}), "messages.content");
  refused(message({{"role", "user"}, {"content", 3}}), "messages.content");
  refused(message({{"role", "user"}}), "messages.content");
  refused(message({{"role", "user"}, {"content", "a"}, {"name", "b"}}),
          "messages.name: is not supported");
  refused(message({{"role", "user"}, {"content", "a"}, {"tool_calls", {{{"id", "b"}}}}}),
          "messages.tool_calls: is not supported");
  refused(message({{"role", "user"},
                   {"content", {{{"type", "text"}, {"text", "a"}, {"cache_control", 1}}}}}),
          "messages.content.cache_control: is not supported");
  refused(message({{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "a"}}}}}),
          "messages.content: has a wrong value");
  // As clients repeat what they have got.
  CHECK(parsed(message({{"role", "assistant"},
                        {"content", "a"},
                        {"refusal", nullptr},
                        {"annotations", json::array()},
                        {"tool_calls", json::array()}}))
            .messages.size() == 1);
  std::string deep = R"({"messages": )";
  deep += std::string(70, '[') + std::string(70, ']') + "}";
  has(input_error([&] { static_cast<void>(tessera::app::parse_chat_request(deep, {}, vocab)); }),
      "request: ");
  std::string many = R"({"messages": [)";
  for (int i = 0; i < 200'000; ++i) {
    many += "1,";
  }
  has(input_error(
          [&] { static_cast<void>(tessera::app::parse_chat_request(many + "1]}", {}, vocab)); }),
      "request: ");
}

TEST_CASE("serve answers chat completions, whole and as a stream") {
  Served server({});
  const Response whole = ask(server.port, post(question("Say two", {{"model", "any"}}).dump()));
  CHECK(content_of(whole) == "two 😀2");
  const json answer = json::parse(whole.body);
  CHECK(answer["object"] == "chat.completion");
  CHECK(answer["choices"][0]["message"]["role"] == "assistant");
  CHECK(answer["choices"][0]["finish_reason"] == "stop");
  CHECK(answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"].get<int>() +
                                               answer["usage"]["completion_tokens"].get<int>());
  json streamed =
      question("Say two", {{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  streamed["messages"].push_back({{"role", "assistant"}, {"content", "two 😀2"}});
  streamed["messages"].push_back({{"role", "user"}, {"content", "Again"}});
  const Response events = ask(server.port, post(streamed.dump()));
  REQUIRE(events.status == 200);
  CHECK(events.headers.at("content-type") == "text/event-stream");
  std::string text;
  json last;
  std::istringstream lines(events.body);
  std::string line;
  int parts = 0;
  while (std::getline(lines, line) && line != "data: [DONE]") {
    if (line.empty()) {
      continue;
    }
    REQUIRE(line.starts_with("data: "));
    last = json::parse(line.substr(6));
    if (!last["choices"].empty() && last["choices"][0]["delta"].contains("content")) {
      text += last["choices"][0]["delta"]["content"].get<std::string>();
      ++parts;
    }
  }
  CHECK(line == "data: [DONE]");
  CHECK(text == "two 😀2");
  CHECK(parts >= 2);
  CHECK(last["usage"]["completion_tokens"].get<int>() > 2);
  CHECK(server.stop().code == 0);
}

TEST_CASE("serve answers as its fields ask") {
  const Served server({"--tokens", "20"});
  const auto asked = [&](const json& more) {
    return json::parse(ask(server.port, post(question("Say two", more).dump())).body);
  };
  const auto finish = [](const json& answer) {
    return answer["choices"][0]["finish_reason"].get<std::string>();
  };
  const json longest = asked({{"max_tokens", 1'000'000}, {"ignore_eos", true}});
  CHECK(longest["usage"]["completion_tokens"] == 20);
  CHECK(finish(longest) == "length");
  const json plain = asked(json::object());
  CHECK(finish(plain) == "stop");
  // The likeliest token is always above any part of itself: as if the temperature was 0.
  CHECK(asked({{"temperature", 5}, {"min_p", 1}})["choices"] == plain["choices"]);
  const tessera::text::TextModel model(trained().model);
  const auto ids = tessera::text::prompt_tokens(model, "two 😀2");
  const json stopped = asked({{"stop_token_ids", {ids.back()}}, {"ignore_eos", true}});
  CHECK(finish(stopped) == "stop");
  CHECK(stopped["usage"]["completion_tokens"].get<int>() < 20);
  CHECK(
      content_of(ask(
          server.port,
          post(json{{"messages",
                     {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Say one"}}}}}}},
                    {"stop", "ü"}}
                   .dump()))) == "one ");
}

TEST_CASE("serve refuses what it cannot answer, and keeps the connection where it has read all") {
  const Served server({"--request-size", "2000"});
  server_test::Wire wire(server.port);
  const auto refused_with = [&](const std::string& request, int status, const std::string& part) {
    wire.send(request);
    const Response response = wire.read();
    CHECK(response.status == status);
    CHECK(response.headers.at("connection") == "keep-alive");
    has(error_in(response), part);
  };
  refused_with(post("{"), 400, "request: ");
  refused_with(post(question("<|im_end|>").dump()), 400, "special token");
  refused_with(post(question(std::string(300, 'x')).dump()), 400,
               "messages: it is longer than the model is meant for");
  refused_with(post(question("a", {{"guided_json", "{}"}}).dump()), 400,
               "guided_json: is not supported");
  refused_with(server_test::get("/v1/other"), 404, "there is no such path");
  refused_with(server_test::get("/v1/models/other"), 404, "there is no such model");
  refused_with(server_test::get("/v1/chat/completions"), 405, "not one for this method");
  refused_with(post("{}", "", "/v1/models"), 405, "not one for this method");
  const Response large = ask(server.port, post(question(std::string(3000, 'x')).dump()));
  CHECK(large.status == 413);
  CHECK(large.headers.at("connection") == "close");
  // No grant for pages of other origins.
  const Response options = ask(server.port,
                               "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: "
                               "localhost\r\nOrigin: http://localhost:3000\r\n"
                               "Access-Control-Request-Method: POST\r\n\r\n");
  CHECK(options.status == 405);
  CHECK(options.headers.at("allow") == "POST");
  for (const auto& [name, value] : options.headers) {
    CHECK(!name.starts_with("access-control"));
  }
}

TEST_CASE("serve has one model, under its name") {
  const Served server({});
  const auto body = [&](const std::string& path) {
    return json::parse(ask(server.port, server_test::get(path)).body);
  };
  const json models = body("/v1/models");
  CHECK(models["object"] == "list");
  CHECK(models["data"][0]["id"] == "model");
  CHECK(body("/v1/models/model")["id"] == "model");
  CHECK(body("/v1/models/%6Dodel?x=y")["object"] == "model");
  CHECK(body("/health")["status"] == "ok");
  if (std::system("command -v curl >/dev/null") == 0) {  // NOLINT(bugprone-command-processor)
    const std::string command = "curl -sf http://localhost:" + std::to_string(server.port) +
                                "/v1/models/model >" + trained().path("curl");
    CHECK(std::system(command.c_str()) == 0);  // NOLINT(bugprone-command-processor)
    has(trainer_test::read_file(trained().path("curl")), "\"object\":\"model\"");
  }
  const auto used = trainer_test::run_program("serve " + trained().model + " --port " +
                                              std::to_string(server.port));
  CHECK(used.code == 2);
  has(used.error, "the server cannot listen at this address");
  const auto few_files =
      trainer_test::run_program("serve " + trained().model + " --port 0", "ulimit -n 200; ");
  CHECK(few_files.code == 2);
  has(few_files.error, "--connections: 512 connections need more open files than are allowed");
}
