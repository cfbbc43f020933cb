// Texts that continue others, their likelihoods, tokens, and the numbers of a server.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
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
using tessera::app::CompletionRequest;
using trainer_test::has;
using trainer_test::input_error;

namespace {

constexpr std::int64_t vocab = 100;

CompletionRequest parsed(const json& body) {
  tessera::text::GenerationOptions defaults;
  defaults.tokens = 50;
  return tessera::app::parse_completion_request(body.dump(), defaults, vocab);
}

void refused(const json& more, const std::string& part) {
  json body = {{"prompt", "a"}};
  body.update(more);
  INFO(body.dump());
  has(input_error([&] { static_cast<void>(parsed(body)); }), part);
}

json asked(const Served& server, const char* path, const json& body) {
  const Response response = ask(server.port, post(body.dump(), "", path));
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body);
}

json completed(const Served& server, const json& body) {
  return asked(server, "/v1/completions", body);
}

/// The events of a stream.
std::vector<json> events(const Served& server, const char* path, json body) {
  body["stream"] = true;
  const Response response = ask(server.port, post(body.dump(), "", path));
  REQUIRE(response.status == 200);
  std::vector<json> all;
  std::istringstream lines(response.body);
  std::string line;
  while (std::getline(lines, line) && line != "data: [DONE]") {
    if (!line.empty()) {
      REQUIRE(line.starts_with("data: "));
      all.push_back(json::parse(line.substr(6)));
    }
  }
  CHECK(line == "data: [DONE]");
  return all;
}

}  // namespace

TEST_CASE("a request for completions has texts or tokens") {
  const CompletionRequest one = parsed({{"prompt", "a"}});
  CHECK(one.prompts.at(0).text == "a");
  CHECK(one.options.tokens == 16);
  CHECK(!one.options.likeliest);
  const CompletionRequest ids = parsed({{"prompt", {1, 2}}, {"max_tokens", 60}});
  CHECK(ids.prompts.size() == 1);
  CHECK(ids.prompts.at(0).tokens == std::vector<std::int64_t>{1, 2});
  CHECK(ids.options.tokens == 50);
  const CompletionRequest several = parsed({{"prompt", {"a", json::array({1}), "b"}},
                                            {"n", 2},
                                            {"logprobs", 0},
                                            {"echo", true},
                                            {"max_tokens", 0}});
  CHECK(several.prompts.size() == 3);
  CHECK(several.count == 2);
  CHECK(several.options.likeliest == 0);
  CHECK(several.options.of_prompt);
  CHECK(several.options.tokens == 0);
  CHECK(
      !parsed({{"prompt", "a"}, {"echo", true}, {"best_of", 1}, {"suffix", ""}}).options.of_prompt);
  for (const json& prompt : std::vector<json>{"",
                                              nullptr,
                                              5,
                                              json::array(),
                                              json::array({json::array()}),
                                              {100},
                                              {-1},
                                              {1, "a"},
                                              {"a", 1},
                                              {"a", ""},
                                              json::array({1.5}),
                                              json(std::vector<std::string>(129, "a")),
                                              {{"a", 1}}}) {
    refused({{"prompt", prompt}},
            "prompt: has a wrong value (expected a text that is not empty, ids from 0 to 99");
  }
  refused({{"prompt", {"a", "b"}}, {"n", 65}}, "n: has a wrong value (expected at most 128 texts");
  refused({{"max_tokens", 0}}, "max_tokens: has a wrong value");
  refused({{"logprobs", 21}}, "logprobs: has a wrong value");
  refused({{"logprobs", true}}, "logprobs: has a wrong value");
  refused({{"echo", true}, {"logprobs", 1}, {"stream", true}},
          "echo: has a wrong value (expected no stream, or no logprobs)");
  refused({{"suffix", "x"}}, "suffix: is not supported");
  refused({{"best_of", 2}}, "best_of: is not supported (expected 1)");
  refused({{"messages", json::array()}}, "messages: is not supported");
  refused({{"top_logprobs", 1}}, "top_logprobs: is not supported");
}

TEST_CASE("serve continues texts, several at once, whole and as a stream") {
  const Served server({});
  const json one =
      completed(server, {{"prompt", "Question: The colour of grass"}, {"max_tokens", 4}});
  CHECK(one["object"] == "text_completion");
  CHECK(one["choices"][0]["logprobs"].is_null());
  const std::string text = one["choices"][0]["text"];
  // What the model continues is what generate writes.
  const tessera::text::TextModel model(trained().model);
  tessera::text::GenerationOptions options;
  options.tokens = 4;
  options.sampling.temperature = 0;
  CHECK(text ==
        tessera::text::generate_text(trained().model, "Question: The colour of grass", options));
  // The same by its tokens, and with its prompt.
  const auto ids = tessera::text::prompt_tokens(model, "Question: The colour of grass");
  const json by_ids = completed(server, {{"prompt", ids}, {"max_tokens", 4}, {"echo", true}});
  has(by_ids["choices"][0]["text"], "Question: The colour of grass" + text);
  // Texts of a prompt are drawn independently, and those of a stream are those of a whole answer.
  const json many = {{"prompt", {"Question: ", ids}},
                     {"n", 3},
                     {"temperature", 2},
                     {"seed", 5},
                     {"max_tokens", 8}};
  const json whole = completed(server, many);
  REQUIRE(whole["choices"].size() == 6);
  std::set<std::string> different;
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(whole["choices"][i]["index"] == i);
    different.insert(whole["choices"][i]["text"].get<std::string>());
  }
  CHECK(different.size() >= 5);
  std::vector<std::string> texts(6);
  std::vector<int> ended(6);
  for (const json& event : events(server, "/v1/completions", many)) {
    const json& choice = event["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    texts.at(index) += choice["text"].get<std::string>();
    ended.at(index) += choice["finish_reason"].is_null() ? 0 : 1;
  }
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(texts[i] == whole["choices"][i]["text"].get<std::string>());
    CHECK(ended[i] == 1);
  }
  const Response unknown = ask(
      server.port, post(json{{"prompt", std::vector<int>(2000, 1)}}.dump(), "", "/v1/completions"));
  CHECK(unknown.status == 400);
  has(error_in(unknown), "prompt: it is longer than the model is meant for");
}

TEST_CASE("likelihoods of an answer are those of the model") {
  const Served server({});
  const tessera::text::TextModel model(trained().model);
  const std::string prompt = "Question: The colour of night";
  const auto ids = tessera::text::prompt_tokens(model, prompt);
  const json answer =
      completed(server, {{"prompt", prompt}, {"max_tokens", 5}, {"logprobs", 2}, {"echo", true}});
  const json& found = answer["choices"][0]["logprobs"];
  const auto tokens = found["tokens"].get<std::vector<std::string>>();
  const auto generated = answer["usage"]["completion_tokens"].get<std::size_t>();
  REQUIRE(tokens.size() == ids.size() + generated);
  CHECK(found["token_logprobs"][0].is_null());
  CHECK(found["top_logprobs"][0].is_null());
  CHECK(found["text_offset"][0] == 0);
  // The sum over the prompt, by the function of evaluations.
  double sum = 0;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    sum += found["token_logprobs"][i].get<double>();
    CHECK(found["top_logprobs"][i].size() == 2);
  }
  const std::vector<std::uint8_t> all(ids.size(), 1);
  CHECK(sum == Approx(tessera::text::log_likelihood(model, ids, all)).margin(1e-4));
  // A greedy token is the likeliest one.
  for (std::size_t i = ids.size(); i < tokens.size(); ++i) {
    const json& top = found["top_logprobs"][i];
    REQUIRE(top.contains(tokens[i]));
    CHECK(top[tokens[i]] == found["token_logprobs"][i]);
    for (const auto& [name, value] : top.items()) {
      CHECK(value.get<double>() <= found["token_logprobs"][i].get<double>());
    }
  }
  // Settings of the sampling do not change what the model says.
  const json biased = completed(server, {{"prompt", prompt},
                                         {"max_tokens", 1},
                                         {"logprobs", 1},
                                         {"logit_bias", {{std::to_string(ids[0]), 100}}}});
  CHECK(biased["choices"][0]["logprobs"]["token_logprobs"][0].get<double>() < -0.5);
  CHECK(biased["choices"][0]["logprobs"]["top_logprobs"][0] != found["top_logprobs"][0]);
  // Only the prompt.
  const json only =
      completed(server, {{"prompt", ids}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}});
  CHECK(only["usage"]["completion_tokens"] == 0);
  CHECK(only["choices"][0]["logprobs"]["token_logprobs"].size() == ids.size());
  CHECK(only["choices"][0]["finish_reason"] == "length");
  // The same of a conversation, whole and as a stream.
  const json question = {{"messages", {{{"role", "user"}, {"content", "Say two"}}}},
                         {"logprobs", true},
                         {"top_logprobs", 2}};
  const json chat = asked(server, "/v1/chat/completions", question);
  const json& content = chat["choices"][0]["logprobs"]["content"];
  REQUIRE(content.size() == chat["usage"]["completion_tokens"]);
  CHECK(content[0]["top_logprobs"].size() == 2);
  CHECK(content[0]["top_logprobs"][0]["token"] == content[0]["token"]);
  const auto bytes = content[0]["bytes"].get<std::vector<unsigned char>>();
  CHECK(std::string(bytes.begin(), bytes.end()) == content[0]["token"].get<std::string>());
  json streamed = json::array();
  for (const json& event : events(server, "/v1/chat/completions", question)) {
    const json likelihoods = event["choices"][0].value("logprobs", json::object());
    const json content_part = likelihoods.value("content", json::array());
    for (const json& token : content_part) {
      streamed.push_back(token);
    }
  }
  CHECK(streamed == content);
}

TEST_CASE("penalties and biases change what is generated") {
  const Served server({});
  const json plain = {
      {"prompt", "Question: The colour of grass"}, {"max_tokens", 12}, {"ignore_eos", true}};
  const tessera::text::TextModel model(trained().model);
  const auto distinct = [&](const json& more) {
    json body = plain;
    body.update(more);
    const json answer = completed(server, body);
    const auto ids =
        tessera::text::prompt_tokens(model, answer["choices"][0]["text"].get<std::string>() + " ");
    return std::pair(answer["choices"][0]["text"].get<std::string>(),
                     std::set<std::int64_t>(ids.begin(), ids.end()).size());
  };
  const auto usual = distinct(json::object());
  const auto forced = distinct({{"logit_bias", {{"40", 100}}}});
  CHECK(forced.second <= 3);
  CHECK(forced.first != usual.first);
  const auto varied =
      distinct({{"logit_bias", {{"40", 20}}}, {"frequency_penalty", 2}, {"presence_penalty", 2}});
  CHECK(varied.first != forced.first);
}

TEST_CASE("serve makes tokens of texts and conversations, and texts of tokens") {
  const Served server({});
  const tessera::text::TextModel model(trained().model);
  const json tokens = asked(server, "/tokenize", {{"prompt", "Question: ü"}});
  CHECK(tokens["tokens"] == tessera::text::prompt_tokens(model, "Question: ü"));
  CHECK(tokens["count"] == tokens["tokens"].size());
  CHECK(tokens["max_model_len"] == model.usual_length());
  has(asked(server, "/detokenize", {{"tokens", tokens["tokens"]}})["prompt"], "Question: ü");
  const json chat =
      asked(server, "/tokenize", {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}});
  CHECK(chat["count"].get<int>() > 2);
  const auto refused_with = [&](const char* path, const json& body, const std::string& part) {
    const Response response = ask(server.port, post(body.dump(), "", path));
    CHECK(response.status == 400);
    has(error_in(response), part);
  };
  refused_with("/tokenize", {{"prompt", 5}}, "prompt: has a wrong value");
  refused_with("/tokenize", {{"text", "a"}}, "messages: has a wrong value");
  refused_with("/detokenize", {{"tokens", {1 << 30}}}, "tokens: has a wrong value");
  refused_with("/detokenize", {{"tokens", json::array()}}, "tokens: has a wrong value");
}

TEST_CASE("the numbers of a server count its requests") {
  const Served server({});
  static_cast<void>(completed(
      server, {{"prompt", "Question: "}, {"max_tokens", 3}, {"ignore_eos", true}, {"n", 2}}));
  const Response response = ask(server.port, server_test::get("/metrics"));
  REQUIRE(response.status == 200);
  CHECK(response.headers.at("content-type").starts_with("text/plain; version=0.0.4"));
  has(response.body, "# TYPE tessera_requests_total counter\n");
  has(response.body, "\ntessera_requests_total{end=\"answered\"} 1\n");
  has(response.body, "\ntessera_requests_active 0\n");
  has(response.body, "\ntessera_generated_tokens_total 6\n");
  has(response.body, "\ntessera_first_token_seconds_bucket{le=\"+Inf\"} 1\n");
  has(response.body, "\ntessera_request_seconds_count 1\n");
  // The two texts have the same prompt, which is computed once or kept for the second one.
  has(response.body, "\ntessera_texts_waiting 0\n");
  has(response.body, "# TYPE tessera_pages_used gauge\n");
}

TEST_CASE("a model without a chat template continues texts") {
  const trainer_test::Folder folder;
  const std::string model = (folder.path() / "plain").string();
  std::filesystem::copy(trained().model, model, std::filesystem::copy_options::recursive);
  json config = json::parse(trainer_test::read_file(model + "/tokenizer_config.json"));
  config.erase("chat_template");
  folder.write("plain/tokenizer_config.json", config.dump());
  const Served server(model, {});
  CHECK(completed(server, {{"prompt", "Question: "},
                           {"max_tokens", 2},
                           {"ignore_eos", true}})["usage"]["completion_tokens"] == 2);
  const Response chat =
      ask(server.port, post(json{{"messages", {{{"role", "user"}, {"content", "a"}}}}}.dump()));
  CHECK(chat.status == 400);
  has(error_in(chat), "messages: the model has no chat template");
}
