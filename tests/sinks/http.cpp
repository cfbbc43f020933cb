// The sinks mlflow and otlp with servers of the test, which fail in every way.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "free_port.hpp"
#include "http_server.hpp"

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;

using namespace tessera;
using namespace tessera::sinks;
using nlohmann::json;
using tessera::testing::Fault;
using tessera::testing::Folder;
using tessera::testing::free_port;
using tessera::testing::HttpServer;
using tessera::testing::Reply;
using tessera::testing::Request;

namespace {

std::unique_ptr<Sink> sink_of(const std::string& name, const json& options) {
  return load_sink(name, options.dump());
}

std::string problem_of(const auto& act) {
  try {
    act();
  } catch (const UnavailableError& error) {
    return std::string("unavailable: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  INFO(text << "\n  has not: " << part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

const std::string run_id = "0123456789abcdef0123456789abcdef";

Event start_event(bool continues = false, double time = 100) {
  return {
      .time = time,
      .content = RunStart{.run = run_id,
                          .name = "tiny",
                          .version = "0.1.0",
                          .host = "here",
                          .config = R"({"train":{"steps":3,"clip":1.5},"data":{"text":["a.txt"]},
                                "parallel":[{"style":"FSDP"}],"log":{"metrics":""},"sinks":null})",
                          .ranks = 2,
                          .steps = 3,
                          .continues = continues}};
}
Event step_event(std::int64_t step, double loss) {
  return {
      .time = 100.0 + static_cast<double>(step),
      .content = StepNumbers{.step = step, .numbers = {{"loss", loss}, {"experts/largest", 2}}}};
}
Event end_event(Outcome outcome = Outcome::done, const std::string& text = "") {
  return {.time = 200, .content = RunEnd{.outcome = outcome, .step = 3, .text = text}};
}

/// Gives it the events until it has taken them.
void taken(Sink& sink, std::span<const Event> events) {
  for (int i = 0; i < 10'000; ++i) {
    try {
      sink.take(events);
      return;
    } catch (const UnavailableError&) {
      continue;
    }
  }
  FAIL("never taken");
}

/// What a server of MLflow keeps.
struct Mlflow {
  struct Run {
    std::string experiment;
    std::string name;
    std::string status = "RUNNING";
    std::int64_t end_time = 0;
    std::map<std::string, std::string> tags = {};
    std::map<std::string, std::string> parameters = {};
    std::map<std::pair<std::string, std::int64_t>, json> metrics = {};
  };
  std::map<std::string, std::string> experiments;  // ids by names
  std::vector<Run> runs;
  std::vector<std::string> problems;

  Reply answer(const Request& request) {
    const std::string api = "/api/2.0/mlflow/";
    const std::string path = request.path.substr(0, request.path.find('?'));
    if (!path.starts_with(api)) {
      return {.code = 404};
    }
    const std::string call = path.substr(api.size());
    const json body =
        request.body.empty() ? json::object() : json::parse(request.body, nullptr, false);
    if (body.is_discarded()) {
      problems.push_back("no JSON: " + request.body);
      return {.code = 400};
    }
    if (call == "experiments/get-by-name") {
      const std::string name = request.path.substr(request.path.find('=') + 1);
      return !experiments.contains(name)
                 ? Reply{.code = 404, .body = R"({"error_code":"RESOURCE_DOES_NOT_EXIST"})"}
                 : Reply{.body =
                             json{{"experiment", {{"experiment_id", experiments[name]}}}}.dump()};
    }
    if (call == "experiments/create") {
      const std::string name = body.at("name");
      if (experiments.contains(name)) {
        return {.code = 400, .body = R"({"error_code":"RESOURCE_ALREADY_EXISTS"})"};
      }
      experiments[name] = std::to_string(experiments.size() + 7);
      return {.body = json{{"experiment_id", experiments[name]}}.dump()};
    }
    if (call == "runs/create") {
      Run run{.experiment = body.at("experiment_id"), .name = body.at("run_name")};
      for (const json& tag : body.at("tags")) {
        run.tags[tag.at("key")] = tag.at("value");
      }
      runs.push_back(std::move(run));
      return {.body = run_json(runs.size() - 1).dump()};
    }
    if (call == "runs/search") {
      return search(body);
    }
    const std::size_t at = std::stoul(body.at("run_id").get<std::string>().substr(1));
    Run& run = runs.at(at);
    if (call == "runs/log-batch") {
      log_batch(run, body);
    } else if (call == "runs/update") {
      run.status = body.at("status");
      run.end_time = body.value("end_time", run.end_time);
    } else if (call == "runs/set-tag") {
      run.tags[body.at("key")] = body.at("value");
    } else {
      problems.push_back("unknown call " + call);
    }
    return {};
  }

 private:
  static json run_json(std::size_t run) {
    return {{"run", {{"info", {{"run_id", "r" + std::to_string(run)}}}}}};
  }
  Reply search(const json& body) {
    const std::string filter = body.at("filter");
    json found = json::array();
    for (std::size_t i = runs.size(); i-- > 0 && found.empty();) {
      for (const auto& [key, value] : runs[i].tags) {
        if (filter == "tags.`" + key + "` = '" + value + "'") {
          found.push_back(run_json(i)["run"]);
        }
      }
    }
    return {.body = found.empty() ? "{}" : json{{"runs", found}}.dump()};
  }
  void log_batch(Run& run, const json& body) {
    const json metrics = body.value("metrics", json::array());
    const json parameters = body.value("params", json::array());
    if (metrics.size() > 1000 || parameters.size() > 100) {
      problems.push_back("too many in one request");
    }
    for (const json& one : metrics) {
      run.metrics[{one.at("key"), one.at("step")}] = one.at("value");
    }
    for (const json& one : parameters) {
      const std::string key = one.at("key");
      if (run.parameters.contains(key) &&
          run.parameters[key] != one.at("value").get<std::string>()) {
        problems.push_back("parameter " + key + " changes");
      }
      run.parameters[key] = one.at("value");
    }
  }
};

/// Of one kind of faults in a row; what is done before the fault, or not.
Reply faulty(std::mt19937& random, const auto& act, std::atomic<int>& faults, bool slow) {
  const unsigned draw = random();
  if (draw % 4 == 0) {
    return act();
  }
  ++faults;
  Reply reply;
  if (draw % 3 == 0) {
    reply = act();  // it is done, and nobody hears of it
  }
  constexpr Fault quick[] = {Fault::reset, Fault::closed, Fault::half, Fault::garbage};
  switch ((draw >> 8) % 8) {
    case 0:
      return {.code = 500, .body = "broken"};
    case 1:
      return {.code = 503, .headers = "Retry-After: 1\r\n"};
    case 2:
      return {.code = 429};
    case 3:
      return {.code = 502, .body = std::string(100'000, 'x')};
    default:
      reply.fault = slow && (draw >> 16) % 200 == 0 ? Fault::never : quick[(draw >> 12) % 4];
      if (reply.body.size() < 3) {
        reply.body = R"({"a": 1})";  // a half of it is no answer
      }
      return reply;
  }
}

void mlflow_with_faults(int wanted, unsigned seed) {
  std::mt19937 random(seed);
  std::atomic<int> faults = 0;
  for (int round = 0; faults < wanted; ++round) {
    Mlflow state;
    const HttpServer server([&](const Request& request) {
      return faulty(random, [&] { return state.answer(request); }, faults, false);
    });
    const auto sink = sink_of("mlflow", {{"url", server.url()}});
    const std::vector<Event> start = {start_event()};
    taken(*sink, start);
    for (std::int64_t step = 1; step <= 20; ++step) {
      const std::vector<Event> events = {step_event(step, 1.0 / static_cast<double>(step))};
      taken(*sink, events);
    }
    const std::vector<Event> end = {end_event()};
    taken(*sink, end);
    sink->finish(1);
    INFO("round " << round);
    CHECK(state.problems == std::vector<std::string>{});
    REQUIRE(state.runs.size() == 1);
    const Mlflow::Run& run = state.runs.front();
    CHECK(run.status == "FINISHED");
    CHECK(run.metrics.size() == 40);
    CHECK(run.parameters.size() == 4);
    for (std::int64_t step = 1; step <= 20; ++step) {
      CHECK(run.metrics.at({"loss", step}).get<double>() == 1.0 / static_cast<double>(step));
    }
  }
}

}  // namespace

TEST_CASE("a run of MLflow has the parameters, the metrics and the outcome") {
  Mlflow state;
  const HttpServer server([&](const Request& request) { return state.answer(request); });
  const auto sink = sink_of("mlflow", {{"url", server.url() + "/"}, {"experiment", "mine"}});
  sink->check();
  const std::vector<Event> events = {start_event(),
                                     step_event(1, 2.5),
                                     step_event(2, std::nan("")),
                                     step_event(3, INFINITY),
                                     {.time = 150, .content = LogLine{.text = "a line"}}};
  sink->take(events);
  const std::vector<Event> end = {end_event(Outcome::failed, "it broke")};
  sink->take(end);
  sink->finish(1);
  CHECK(state.problems.empty());
  REQUIRE(state.runs.size() == 1);
  const Mlflow::Run& run = state.runs.front();
  CHECK(state.experiments == std::map<std::string, std::string>{{"mine", "7"}});
  CHECK(run.experiment == "7");
  CHECK(run.name == "tiny");
  CHECK(run.tags.at("tessera.run") == run_id);
  CHECK(run.tags.at("tessera.error") == "it broke");
  CHECK(run.status == "FAILED");
  CHECK(run.end_time == 200'000);
  CHECK(run.parameters == std::map<std::string, std::string>{{"train.steps", "3"},
                                                             {"train.clip", "1.5"},
                                                             {"data.text", R"(["a.txt"])"},
                                                             {"parallel.0.style", "FSDP"}});
  CHECK(run.metrics.size() == 6);
  CHECK(run.metrics.at({"loss", 1}) == 2.5);
  CHECK(run.metrics.at({"loss", 2}) == "NaN");
  CHECK(run.metrics.at({"loss", 3}) == "Infinity");
  CHECK(run.metrics.at({"experts/largest", 1}) == 2);
}

TEST_CASE("a run that is continued continues its run of MLflow, and a new one is another") {
  Mlflow state;
  const HttpServer server([&](const Request& request) { return state.answer(request); });
  const auto part = [&](bool continues, double time, std::int64_t step) {
    const auto sink = sink_of("mlflow", {{"url", server.url()}});
    const std::vector<Event> events = {start_event(continues, time), step_event(step, 1),
                                       end_event(Outcome::interrupted)};
    sink->take(events);
    sink->finish(1);
  };
  part(false, 100, 1);
  CHECK(state.runs.at(0).status == "KILLED");
  part(true, 110, 2);
  REQUIRE(state.runs.size() == 1);
  CHECK(state.runs[0].metrics.contains({"loss", 1}));
  CHECK(state.runs[0].metrics.contains({"loss", 2}));
  part(false, 120, 1);  // in the same folder, from the start
  REQUIRE(state.runs.size() == 2);
  part(true, 130, 3);
  CHECK(state.runs[0].metrics.size() == 4);
  CHECK(state.runs[1].metrics.contains({"loss", 3}));
  CHECK(state.problems.empty());
}

TEST_CASE("many numbers are sent in requests that the server takes") {
  Mlflow state;
  const HttpServer server([&](const Request& request) { return state.answer(request); });
  const auto sink = sink_of("mlflow", {{"url", server.url()}});
  NamedNumbers numbers;
  for (int i = 0; i < 2500; ++i) {
    numbers.emplace_back("n" + std::to_string(i), i);
  }
  const std::vector<Event> events = {
      start_event(), {.time = 1, .content = StepNumbers{.step = 1, .numbers = numbers}}};
  sink->take(events);
  CHECK(state.problems.empty());
  CHECK(state.runs.at(0).metrics.size() == 2500);
}

TEST_CASE("faults of an MLflow server lose nothing and repeat nothing") {
  mlflow_with_faults(500, 3);
}

TEST_CASE("10,000 faults of an MLflow server lose nothing and repeat nothing", "[.long]") {
  mlflow_with_faults(10'000, 5);
}

TEST_CASE("what another server answers is an error that says so") {
  Reply reply;
  const HttpServer server([&](const Request&) { return reply; });
  const auto sink = sink_of("mlflow", {{"url", server.url()}});
  const std::vector<Event> events = {start_event()};
  const auto error = [&] { return problem_of([&] { sink->take(events); }); };
  reply = {.body = "<html>hello</html>"};
  has(error(), "the server's answer has no 'experiment'");
  reply = {.code = 403, .body = "no\x1b[31m entry"};
  has(error(), "answers 403: no");
  reply = {.code = 302, .headers = "Location: http://elsewhere.example/x\r\n"};
  has(error(), "names http://elsewhere.example/x, which is not followed; set that url");
  reply = {.code = 200, .body = std::string(2'000'000, '[')};
  CHECK_FALSE(error().empty());
  reply = {.code = 200, .body = std::string(900'000, '[')};
  CHECK_FALSE(error().empty());
  reply = {.code = 200, .body = R"({"experiment": {"experiment_id": {"a": [1]}}})"};
  CHECK_FALSE(error().empty());
  const auto early = sink_of("mlflow", {{"url", server.url()}});
  const std::vector<Event> steps = {step_event(1, 1)};
  has(problem_of([&] { early->take(steps); }), "the run has not told its start");
}

TEST_CASE("a server that is not there, or says when to come again, is waited for") {
  const std::vector<Event> events = {start_event()};
  const auto away = sink_of("mlflow", {{"url", "http://127.0.0.1:" + std::to_string(free_port())}});
  has(problem_of([&] { away->take(events); }), "unavailable: mlflow: http://127.0.0.1:");
  const HttpServer server(
      [&](const Request&) { return Reply{.code = 503, .headers = "Retry-After: 7\r\n"}; });
  const auto sink = sink_of("mlflow", {{"url", server.url()}});
  try {
    sink->take(events);
    FAIL("it was taken");
  } catch (const UnavailableError& error) {
    CHECK(error.after() == 7);
  }
}

TEST_CASE("a server that never answers is given up after seconds", "[.long]") {
  const std::vector<Event> events = {start_event()};
  for (const Fault fault : {Fault::never, Fault::slow}) {
    const HttpServer server(
        [&](const Request&) { return Reply{.body = std::string(100'000, 'x'), .fault = fault}; });
    const auto sink = sink_of("mlflow", {{"url", server.url()}});
    const auto start = std::chrono::steady_clock::now();
    has(problem_of([&] { sink->take(events); }), "unavailable: ");
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(8));
  }
}

TEST_CASE("a token comes from the environment or a file, and is in no error") {
  const std::string token = "very-secret-token";
  ::setenv("TESSERA_TEST_TOKEN", token.c_str(), 1);
  const Folder folder;
  const std::string file = folder.write("token", token + "\n");
  ::chmod(file.c_str(), 0600);
  std::string head;
  const HttpServer server([&](const Request& request) {
    head = request.head;
    return Reply{.code = 401, .body = "bad token: " + request.head};
  });
  const std::vector<Event> events = {start_event()};
  for (const json& options :
       {json{{"token_env", "TESSERA_TEST_TOKEN"}}, json{{"token_file", file}}}) {
    json all = options;
    all["url"] = server.url();
    const auto sink = sink_of("mlflow", all);
    sink->check();
    const std::string error = problem_of([&] { sink->take(events); });
    has(head, "Authorization: Bearer " + token);
    has(error, "Bearer ***");
    CHECK(error.find(token) == std::string::npos);
  }
  {
    // Wherever the answer is cut, no part of the token is left.
    const std::string repeated = "bad: " + token;
    for (std::size_t before = 280; before < 300; ++before) {
      const HttpServer other([&](const Request&) {
        return Reply{.code = 403, .body = std::string(before, 'x') + repeated};
      });
      const auto sink =
          sink_of("mlflow", {{"url", other.url()}, {"token_env", "TESSERA_TEST_TOKEN"}});
      const std::string error = problem_of([&] { sink->take(events); });
      has(error, "answers 403: xxx");
      CHECK(error.find(token.substr(0, 4)) == std::string::npos);
    }
  }
  const auto with_user = sink_of(
      "mlflow", {{"url", server.url()}, {"user", "me"}, {"token_env", "TESSERA_TEST_TOKEN"}});
  static_cast<void>(problem_of([&] { with_user->take(events); }));
  has(head, "Authorization: Basic bWU6dmVyeS1zZWNyZXQtdG9rZW4=");
  ::chmod(file.c_str(), 0644);
  has(problem_of([&] { sink_of("otlp", {{"token_file", file}})->check(); }), "otlp: token_file");
  has(problem_of([&] { sink_of("otlp", {{"token_env", "TESSERA_TEST_NONE"}})->check(); }),
      "token_env names TESSERA_TEST_NONE, which is not set");
  ::setenv("TESSERA_TEST_TOKEN", "two\nlines", 1);
  has(problem_of([&] { sink_of("otlp", {{"token_env", "TESSERA_TEST_TOKEN"}})->check(); }),
      "characters that no header may have");
  ::unsetenv("TESSERA_TEST_TOKEN");
}

TEST_CASE("a URL that is none, or has a secret, is refused") {
  const auto refusal = [](const std::string& url) {
    return problem_of([&] { sink_of("otlp", {{"url", url}}); });
  };
  for (const char* const wrong :
       {"", "x", "ftp://host", "file:///etc/passwd", "http://", "http://a b", "gopher://host:1"}) {
    INFO(wrong);
    has(refusal(wrong), "url must begin with http:// or https:// and a host");
  }
  has(refusal("http://me:word@host"), "url must have no user and no password");
  CHECK(refusal("http://me:word@host").find("word@") == std::string::npos);
  has(refusal("http://host/?token=1"), "no '?'");
  CHECK(refusal("https://host:4318/path").empty());
}

TEST_CASE("OTLP has metrics, spans and log records of the run") {
  const HttpServer server([](const Request&) { return Reply{}; });
  const auto sink = sink_of("otlp", {{"url", server.url()}, {"service", "mine"}});
  const std::vector<Event> events = {
      start_event(),
      step_event(1, 2.5),
      step_event(2, std::nan("")),
      {.time = 103, .content = PhaseSpan{.name = "step", .step = 2, .seconds = 0.5}},
      {.time = 104, .content = LogLine{.level = LogLevel::warning, .text = "odd \xff text"}},
      end_event()};
  sink->take(events);
  const std::vector<Request> requests = server.requests();
  REQUIRE(requests.size() == 3);
  CHECK(requests[0].path == "/v1/metrics");
  CHECK(requests[1].path == "/v1/traces");
  CHECK(requests[2].path == "/v1/logs");
  const json metrics = json::parse(requests[0].body);
  const json& resource = metrics["resourceMetrics"][0]["resource"]["attributes"];
  CHECK(resource[0] == json::parse(R"({"key":"service.name","value":{"stringValue":"mine"}})"));
  CHECK(resource[1]["value"]["stringValue"] == run_id);
  const json& gauges = metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
  const auto gauge =
      std::ranges::find_if(gauges, [](const json& g) { return g["name"] == "tessera.loss"; });
  REQUIRE(gauge != gauges.end());
  CHECK((*gauge)["gauge"]["dataPoints"] ==
        json::parse(R"([{"timeUnixNano":"101000000000","asDouble":2.5},
          {"timeUnixNano":"102000000000","flags":1}])"));
  const json traces = json::parse(requests[1].body);
  const json& spans = traces["resourceSpans"][0]["scopeSpans"][0]["spans"];
  REQUIRE(spans.size() == 2);
  CHECK(spans[0]["name"] == "step");
  CHECK(spans[0]["startTimeUnixNano"] == "102500000000");
  CHECK(spans[0]["endTimeUnixNano"] == "103000000000");
  CHECK(spans[0]["traceId"].get<std::string>().size() == 32);
  CHECK(spans[0]["spanId"].get<std::string>().size() == 16);
  CHECK(spans[0]["parentSpanId"] == spans[1]["spanId"]);
  CHECK(spans[1]["name"] == "run");
  const json logs = json::parse(requests[2].body);
  const json& records = logs["resourceLogs"][0]["scopeLogs"][0]["logRecords"];
  REQUIRE(records.size() == 3);
  CHECK(records[1]["severityNumber"] == 13);
  CHECK(records[1]["severityText"] == "warning");
}

TEST_CASE("OTLP sends each signal once, whatever fails between") {
  std::mt19937 random(11);
  std::atomic<int> faults = 0;
  std::map<std::string, std::set<std::string>> done;  // bodies by path
  std::map<std::string, int> times;
  const HttpServer server([&](const Request& request) {
    const auto act = [&] {
      ++times[request.path];
      done[request.path].insert(request.body);
      return Reply{};
    };
    Reply reply = faulty(random, [] { return Reply{}; }, faults, false);
    return reply.code == 200 && reply.fault == Fault::none ? act() : reply;
  });
  const auto sink = sink_of("otlp", {{"url", server.url()}});
  const std::vector<Event> start = {start_event()};
  taken(*sink, start);
  for (std::int64_t step = 1; faults < 300; ++step) {
    const std::vector<Event> events = {
        step_event(step, 1),
        {.time = 100.0 + static_cast<double>(step),
         .content = PhaseSpan{.name = "step", .step = step, .seconds = 0.5}}};
    taken(*sink, events);
  }
  for (const auto& [path, bodies] : done) {
    INFO(path);
    CHECK(static_cast<int>(bodies.size()) == times[path]);
  }
  CHECK(times["/v1/metrics"] == times["/v1/traces"]);
}

TEST_CASE("a part that an OTLP server refuses is an error") {
  const HttpServer server([](const Request&) {
    return Reply{.body =
                     R"({"partialSuccess":{"rejectedDataPoints":"2","errorMessage":"too old"}})"};
  });
  const auto sink = sink_of("otlp", {{"url", server.url()}});
  const std::vector<Event> events = {start_event(), step_event(1, 1)};
  has(problem_of([&] { sink->take(events); }), "too old");
}
