// Answers that follow a schema or a grammar, and calls of tools.
#include <cstdint>
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
using nlohmann::ordered_json;
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

json question(const json& more) {
  json body = {{"messages", {{{"role", "user"}, {"content", "Say one"}}}}};
  if (!more.empty()) {
    body.update(more);
  }
  return body;
}

ChatRequest parsed(const json& more) {
  return tessera::app::parse_chat_request(question(more).dump(), {}, vocab);
}

void refused(const json& more, const std::string& part) {
  INFO(more.dump());
  has(input_error([&] { static_cast<void>(parsed(more)); }), part);
}

json tool(const std::string& name, const json& parameters) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}};
}

const json place = {{"type", "object"},
                    {"properties",
                     {{"place", {{"type", "string"}, {"maxLength", 5}}},
                      {"day", {{"type", "integer"}, {"minimum", 1}, {"maximum", 31}}}}},
                    {"required", {"place", "day"}},
                    {"additionalProperties", false}};

json asked(const Served& server, const json& body, const char* path = "/v1/chat/completions") {
  const Response response = ask(server.port, post(body.dump(), "", path));
  INFO(response.body);
  REQUIRE(response.status == 200);
  return json::parse(response.body);
}

std::vector<json> events(const Served& server, json body) {
  body["stream"] = true;
  const Response response = ask(server.port, post(body.dump()));
  INFO(response.body);
  REQUIRE(response.status == 200);
  std::vector<json> all;
  std::istringstream lines(response.body);
  for (std::string line; std::getline(lines, line) && line != "data: [DONE]";) {
    if (!line.empty()) {
      all.push_back(json::parse(line.substr(6)));
    }
  }
  return all;
}

void check_arguments(const std::string& text) {
  INFO(text);
  const json arguments = json::parse(text, nullptr, false);
  REQUIRE(arguments.is_object());
  CHECK(arguments.size() == 2);
  CHECK(arguments.at("place").is_string());
  CHECK(arguments.at("day").get<int>() >= 1);
  CHECK(arguments.at("day").get<int>() <= 31);
}

std::string wrong(const Served& server, const json& more) {
  const Response response = ask(server.port, post(question(more).dump()));
  CHECK(response.status == 400);
  return error_in(response);
}

}  // namespace

TEST_CASE("a request says in one field what its texts follow") {
  const auto schema = [](const std::string& text) {
    return tessera::app::parse_chat_request(
               R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",)"
               R"("json_schema":{"name":"n","strict":true,"schema":)" +
                   text + "}}}",
               {}, vocab)
        .grammar.value();
  };
  CHECK(schema(R"({"b":1,"a":{"d":1,"c":2}})").text == R"({"b":1,"a":{"d":1,"c":2}})");
  CHECK(schema("true").place == "response_format.json_schema.schema");
  CHECK(!parsed({}).grammar);
  CHECK(!parsed({{"response_format", {{"type", "text"}}}}).grammar);
  CHECK(parsed({{"response_format", {{"type", "json_object"}}}}).grammar.has_value());
  CHECK(parsed({{"response_format", {{"type", "json_object"}, {"schema", true}}}}).grammar->text ==
        "true");
  CHECK(parsed({{"json_schema", json::object()}}).grammar->place == "json_schema");
  CHECK(parsed({{"grammar", "root ::= \"a\""}}).grammar->text == "root ::= \"a\"");
  refused({{"response_format", 1}}, "response_format: has a wrong value");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format.type: has a wrong value");
  refused({{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema");
  refused({{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", 1}}}}}},
          "response_format.json_schema.schema");
  refused({{"response_format",
            {{"type", "json_schema"}, {"json_schema", {{"schema", true}, {"x", 1}}}}}},
          "response_format.json_schema.x: is not supported");
  refused({{"response_format", {{"type", "json_object"}}}, {"grammar", "a"}},
          "grammar: has a wrong value (expected no response_format beside it)");
  refused({{"grammar", 1}}, "grammar: has a wrong value");
}

TEST_CASE("a request names the tools that the answer may or must call") {
  const json tools = {tool("one", place), tool("two", json::object())};
  const ChatRequest both = parsed({{"tools", tools}});
  CHECK(both.callable.size() == 2);
  CHECK(!both.must_call);
  CHECK(both.several_calls);
  CHECK(json::parse(both.tools) == tools);
  CHECK(json::parse(both.callable[0].parameters) == place);
  CHECK(parsed({{"tools", tools}, {"tool_choice", "none"}}).tools.empty());
  CHECK(parsed({{"tools", tools}, {"tool_choice", "required"}}).must_call);
  CHECK(!parsed({{"tools", tools}, {"parallel_tool_calls", false}}).several_calls);
  const json two = {{"type", "function"}, {"function", {{"name", "two"}}}};
  const ChatRequest named = parsed({{"tools", tools}, {"tool_choice", two}});
  CHECK(named.callable.size() == 1);
  CHECK(named.callable[0].name == "two");
  CHECK(json::parse(named.tools).size() == 2);
  refused({{"tools", {{{"type", "function"}}}}}, "tools: has a wrong value");
  refused({{"tools", json::array({tool("", place)})}}, "tools.function.name: has a wrong value");
  refused({{"tools", json::array({tool("a b", place)})}}, "tools.function.name: has a wrong value");
  refused({{"tools", {tool("a", place), tool("a", place)}}}, "tools.function.name");
  refused({{"tools", json::array({tool("a", 3)})}}, "tools.function.parameters");
  refused({{"tools", tools}, {"tool_choice", "some"}}, "tool_choice: has a wrong value");
  refused({{"tool_choice", "required"}}, "tool_choice: has a wrong value (expected tools");
  refused({{"tool_choice", two}}, "tool_choice.function.name");
  refused({{"tools", tools}, {"grammar", "a"}}, "tools: has a wrong value (expected no grammar");
  // Messages with calls, and with their results.
  const auto message = [](const json& calls) {
    return json{{"messages",
                 {{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}},
                  {{"role", "tool"}, {"content", "3"}, {"tool_call_id", "c1"}}}}};
  };
  const json call = {{"id", "c1"}, {"function", {{"name", "one"}, {"arguments", "{\"a\":1}"}}}};
  const ChatRequest called = parsed(message(json::array({call})));
  CHECK(called.messages[0].content.empty());
  CHECK(json::parse(called.messages[1].members) == json{{"tool_call_id", "c1"}, {"name", "one"}});
  refused(message(json::array({{{"id", "c1"}}})),
          "messages.tool_calls.function: has a wrong value");
  refused(message(json::array({3})), "messages.tool_calls: must be a list of calls");
  // Thoughts of an answer come back with it.
  const auto answered = [](const json& more) {
    json answer = {{"role", "assistant"}, {"reasoning_content", "Hm."}};
    answer.update(more);
    const ChatRequest request = parsed({{"messages", json::array({answer})}});
    return json::parse(request.messages[0].members).value("thinking", "none");
  };
  CHECK(answered({{"content", "Yes"}}) == "Hm.");
  CHECK(answered({{"content", nullptr}, {"tool_calls", json::array({call})}}) == "Hm.");
  CHECK(answered({{"content", "I ask"}, {"tool_calls", json::array({call})}}) == "none");
  refused({{"messages", {{{"role", "assistant"}, {"content", "a"}, {"reasoning_content", 3}}}}},
          "messages.reasoning_content");
  json text = call;
  text["function"]["arguments"] = "not JSON";
  refused(message(json::array({text})), "messages.tool_calls.function.arguments");
}

TEST_CASE("answers follow a schema or a grammar") {
  const Served server(trained().long_model, {"--tokens", "1000"});
  const json schema = {
      {"type", "object"},
      {"properties",
       {{"name", {{"type", "string"}, {"maxLength", 6}}},
        {"age", {{"type", "integer"}, {"minimum", 0}, {"maximum", 120}}},
        {"tags", {{"type", "array"}, {"items", {{"enum", {"a", "b"}}}}, {"maxItems", 3}}}}},
      {"required", {"name", "age"}},
      {"additionalProperties", false}};
  json body = question(
      {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}}},
       {"temperature", 1.5},
       {"seed", 7},
       {"n", 6},
       {"logprobs", true},
       {"frequency_penalty", 0.5}});
  const json answer = asked(server, body);
  std::vector<std::string> texts(6);
  std::int64_t tokens = 0;
  for (const json& choice : answer["choices"]) {
    INFO(choice.dump());
    CHECK(choice["finish_reason"] == "stop");
    const std::string text = choice["message"]["content"];
    const json value = json::parse(text);
    CHECK(value.at("name").is_string());
    CHECK(value.at("age").get<int>() <= 120);
    for (const json& tag : value.value("tags", json::array())) {
      CHECK((tag == "a" || tag == "b"));
    }
    CHECK(std::set<std::size_t>{2, 3}.contains(value.size()));
    texts[choice["index"].get<std::size_t>()] = text;
    tokens += std::ssize(choice["logprobs"]["content"]);
  }
  CHECK(answer["usage"]["completion_tokens"] == tokens);
  CHECK(std::set<std::string>(texts.begin(), texts.end()).size() > 1);
  // The same in parts.
  std::vector<std::string> parts(6);
  for (const json& event : events(server, body)) {
    const json& choice = event["choices"][0];
    parts[choice["index"].get<std::size_t>()] += choice["delta"].value("content", "");
  }
  CHECK(parts == texts);

  const auto completed = [&](const json& more) {
    json request = {{"prompt", "Question: colour of grass\nAnswer:"}, {"max_tokens", 30}};
    request.update(more);
    return asked(server, request, "/v1/completions")["choices"][0];
  };
  const json colour = completed({{"grammar", "root ::= \" \" (\"blue\" | \"black\" | \"green\")"}});
  CHECK(colour["text"] == " green");
  CHECK(colour["finish_reason"] == "stop");
  const json cut =
      completed({{"grammar", "root ::= \"abcdefghijklmnopqrstuvwxyz\""}, {"max_tokens", 3}});
  CHECK(cut["finish_reason"] == "length");
  CHECK(std::string("abcdefghijklmnopqrstuvwxyz").starts_with(cut["text"].get<std::string>()));
  // Nothing follows, and no token is an end.
  const json over = completed({{"grammar", "root ::= \"ab\""}, {"ignore_eos", true}});
  CHECK(over["text"] == "ab");
  CHECK(over["finish_reason"] == "stop");
  CHECK(completed({{"grammar", "root ::= [a-z]+ \"!\""}, {"stop", "e"}, {"temperature", 2}})["text"]
            .get<std::string>()
            .find('e') == std::string::npos);

  has(wrong(server, {{"response_format",
                      {{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", true}}}}}}}}),
      "response_format.json_schema.schema/not: is not supported");
  has(wrong(server, {{"grammar", "root ::= x"}}), "there is no rule 'x'");
  has(wrong(server, {{"json_schema", false}}), "json_schema: no text can meet it");
}

TEST_CASE("tools are called in the form of the model's template") {
  const Served server(trained().long_model,
                      {"--tokens", "1000", "--chat-template", server_test::template_with_calls()});
  const json tools = {tool("weather", place),
                      tool("now", {{"type", "object"}, {"properties", json::object()}})};
  json body = question({{"tools", tools},
                        {"tool_choice", "required"},
                        {"temperature", 1},
                        {"seed", 3},
                        {"parallel_tool_calls", false},
                        {"n", 4}});
  const json answer = asked(server, body);
  for (const json& choice : answer["choices"]) {
    INFO(choice.dump());
    CHECK(choice["finish_reason"] == "tool_calls");
    CHECK(choice["message"]["content"].is_null());
    REQUIRE(choice["message"]["tool_calls"].size() == 1);
    const json& call = choice["message"]["tool_calls"][0];
    CHECK(call["type"] == "function");
    CHECK(call["id"].get<std::string>().size() == 9);
    const auto name = call["function"]["name"].get<std::string>();
    CHECK((name == "weather" || name == "now"));
    if (name == "weather") {
      check_arguments(call["function"]["arguments"].get<std::string>());
    }
  }

  body["n"] = 1;
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  const json whole = asked(server, body)["choices"][0]["message"]["tool_calls"][0]["function"];
  CHECK(whole["name"] == "weather");
  json streamed;
  std::string end;
  for (const json& event : events(server, body)) {
    const json& choice = event["choices"][0];
    CHECK(choice["delta"].value("content", "").empty());
    if (choice["delta"].contains("tool_calls")) {
      CHECK(streamed.is_null());
      streamed = choice["delta"]["tool_calls"][0];
    }
    end = choice["finish_reason"].is_null() ? "" : choice["finish_reason"];
  }
  CHECK(end == "tool_calls");
  CHECK(streamed["index"] == 0);
  CHECK(streamed["function"] == whole);

  // The answer and the result go back to the model.
  streamed.erase("index");
  json longer = question({{"tools", tools}});
  longer["messages"].push_back(
      {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", json::array({streamed})}});
  longer["messages"].push_back(
      {{"role", "tool"}, {"content", "rain"}, {"tool_call_id", streamed["id"]}});
  longer["max_tokens"] = 3;
  CHECK(asked(server, longer)["choices"][0]["message"]["content"].is_string());
  // Without the grammar, the model says what it has learned.
  const json said = asked(server, question({{"tools", tools}}))["choices"][0];
  CHECK(said["message"]["content"].is_string());
  CHECK(!said["message"].contains("tool_calls"));

  const json no_schema = json::array({tool("weather", {{"type", "object"}, {"minProperties", 1}})});
  has(wrong(server, {{"tools", no_schema}, {"tool_choice", "required"}}),
      "tools.0.function.parameters/minProperties: is not supported");
  json special = tools;
  special[0]["function"]["description"] = "<|im_end|>";
  has(wrong(server, {{"tools", special}}), "the tools contain the special token '<|im_end|>'");
}

TEST_CASE("tools are refused where the template does not write them in a known form") {
  const std::string text =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const std::string part = "tools: the model's chat template does not write tools";
  const Served without({"--chat-template", trained().write("plain.jinja", text)});
  has(wrong(without, {{"tools", json::array({tool("a", place)})}}), part);
  const Served other(std::vector<std::string>{});  // it has marks of its own
  has(wrong(other, {{"tools", json::array({tool("a", place)})}}), part);
}

TEST_CASE("a schema that is sent again is compiled once, and the last eight are kept") {
  const Served server({});
  const auto answer = [&](int longest) {
    const json body = {{"prompt", "Question:"},
                       {"max_tokens", 40},
                       {"json_schema", {{"type", "string"}, {"maxLength", longest}}}};
    const Response response = ask(server.port, post(body.dump(), "", "/v1/completions"));
    REQUIRE(response.status == 200);
    return json::parse(response.body)["choices"][0]["text"].get<std::string>();
  };
  const auto count = [&](const std::string& name) {
    const std::string all = ask(server.port, server_test::get("/metrics")).body;
    const std::string line = "\ntessera_grammars_" + name + "_total ";
    return std::stoi(all.substr(all.find(line) + line.size()));
  };
  const std::string first = answer(3);
  CHECK(answer(3) == first);
  CHECK(count("compiled") == 1);
  CHECK(count("kept") == 1);
  for (int longest = 4; longest < 11; ++longest) {
    answer(longest);
  }
  CHECK(answer(3) == first);  // used last, so the next one takes the place of 4
  answer(11);
  CHECK(count("compiled") == 9);
  answer(3);
  CHECK(count("compiled") == 9);
  answer(4);
  CHECK(count("compiled") == 10);
}
