// The sink prometheus: its page, and ports that it cannot have.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "free_port.hpp"
#include "http_server.hpp"

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;

using namespace tessera;
using namespace tessera::sinks;
using nlohmann::json;
using tessera::testing::error_of;
using tessera::testing::free_port;

namespace {

std::unique_ptr<Sink> prometheus_at(int port) {
  return load_sink("prometheus", json{{"port", port}}.dump());
}

/// What a request gets, with its head.
std::string answer_of(int port, const std::string& request) {
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    ::send(connection, request.data(), request.size(), MSG_NOSIGNAL);
    char bytes[4096];
    for (ssize_t count = 0; (count = ::recv(connection, bytes, sizeof bytes, 0)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(count));
    }
  }
  ::close(connection);
  return text;
}

std::vector<std::string> page(int port) {
  std::istringstream text(answer_of(port, "GET /metrics HTTP/1.0\r\n\r\n"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  return lines;
}

bool has_line(const std::vector<std::string>& lines, const std::string& line) {
  return std::ranges::find(lines, line) != lines.end();
}

}  // namespace

TEST_CASE("the page has the last numbers, the phases and the lines") {
  const int port = free_port();
  const auto sink = prometheus_at(port);
  sink->check();
  const std::vector<Event> events = {
      {.time = 100,
       .content = RunStart{.run = "id",
                           .name = "quo\"te\n",
                           .version = "0.1.0",
                           .host = "h",
                           .ranks = 2,
                           .steps = 9}},
      {.time = 101, .content = StepNumbers{.step = 1, .numbers = {{"loss", 3}}}},
      {.time = 102,
       .content = StepNumbers{.step = 2,
                              .numbers = {{"loss", 2.5},
                                          {"experts/largest", 1.5},
                                          {"ranks", 7},
                                          {"odd", std::nan("")}}}},
      {.time = 102, .content = PhaseSpan{.name = "step", .step = 1, .seconds = 0.25}},
      {.time = 102, .content = PhaseSpan{.name = "step", .step = 2, .seconds = 0.5}},
      {.time = 103, .content = LogLine{.level = LogLevel::warning, .text = "w"}}};
  sink->take(events);
  const std::vector<std::string> lines = page(port);
  for (const char* const line :
       {"tessera_loss 2.5", "tessera_experts_largest 1.5", "tessera_odd Nan", "tessera_step 2",
        "tessera_steps_planned 9", "tessera_ranks 2", "tessera_event_time_seconds 103",
        R"(tessera_run_info{run="id",name="quo\"te\n",version="0.1.0",host="h"} 1)",
        R"(tessera_phase_seconds_total{phase="step"} 0.75)",
        R"(tessera_phase_count_total{phase="step"} 2)",
        R"(tessera_log_lines_total{level="warning"} 1)", "# TYPE tessera_loss gauge"}) {
    INFO(line);
    const std::string other = std::string(line) == "tessera_odd Nan" ? "tessera_odd NaN" : line;
    CHECK((has_line(lines, line) || has_line(lines, other)));
  }
  sink->finish(1);
  CHECK(page(port).empty());
}

TEST_CASE("names and phases of the page are bounded") {
  const int port = free_port();
  const auto sink = prometheus_at(port);
  std::vector<Event> events = {{.time = 1, .content = RunStart{}}};
  for (int i = 0; i < 1000; ++i) {
    events.push_back(
        {.time = 1,
         .content = StepNumbers{
             .step = i, .numbers = {{"n" + std::to_string(i) + std::string(1000, 'x'), 1}}}});
    events.push_back({.time = 1, .content = PhaseSpan{.name = "p" + std::to_string(i)}});
  }
  sink->take(events);
  const std::vector<std::string> lines = page(port);
  const auto count = [&](const std::string& beginning) {
    return std::ranges::count_if(
        lines, [&](const std::string& line) { return line.starts_with(beginning); });
  };
  CHECK(count("tessera_n") == 256);
  CHECK(count("tessera_phase_count_total{") == 32);
  sink->finish(1);
}

TEST_CASE("a port that is taken is refused before a run, and waited for within it") {
  auto server = std::make_unique<tessera::testing::HttpServer>(
      [](const tessera::testing::Request&) { return tessera::testing::Reply{}; });
  const int port = server->port();
  const auto sink = prometheus_at(port);
  const std::string error = error_of([&] { sink->check(); });
  INFO(error);
  CHECK(error.find("port " + std::to_string(port) + " of 127.0.0.1 cannot be used") !=
        std::string::npos);
  const std::vector<Event> events = {{.time = 1, .content = RunStart{}}};
  CHECK_THROWS_AS(sink->take(events), UnavailableError);
  server.reset();
  sink->take(events);
  CHECK_FALSE(page(port).empty());
  sink->finish(1);
}

TEST_CASE("requests that are no scrapes do not end the page") {
  const int port = free_port();
  const auto sink = prometheus_at(port);
  const std::vector<Event> events = {{.time = 1, .content = RunStart{}}};
  sink->take(events);
  for (const std::string& request :
       {std::string("\x01\x02\x03\r\n\r\n"), std::string("GET /../../etc/passwd HTTP/1.0\r\n\r\n"),
        "GET /" + std::string(100'000, 'x') + " HTTP/1.0\r\n\r\n",
        std::string("POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")}) {
    CHECK(answer_of(port, request).find("root:") == std::string::npos);
  }
  CHECK_FALSE(page(port).empty());
  sink->finish(1);
}

TEST_CASE("addresses and ports that are none are refused") {
  for (const char* const options :
       {R"({"port": 0})", R"({"port": 70000})", R"({"port": "x"})", R"({"address": "localhost"})",
        R"({"address": "1.2.3"})", R"({"adress": "::1"})"}) {
    INFO(options);
    CHECK_FALSE(error_of([&] { load_sink("prometheus", options); }).empty());
  }
  load_sink("prometheus", R"({"address": "::1", "port": 1})");
}
