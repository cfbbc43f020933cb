// A server whose ranks die: answers that are being written continue.
#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"
#include "trained.hpp"

using generation_test::trained;
using nlohmann::json;
using server_test::ask;
using server_test::get;
using server_test::post;
using server_test::Response;
using server_test::Served;

namespace {

std::string request(double temperature, std::int64_t tokens) {
  return post(json{{"prompt", "Question: The colour of"},
                   {"max_tokens", tokens},
                   {"temperature", temperature},
                   {"seed", 3},
                   {"ignore_eos", true},
                   {"stream", true}}
                  .dump(),
              "", "/v1/completions");
}

/// The text of a stream that has come to its end.
std::string text_of(const Response& response) {
  REQUIRE(response.status == 200);
  std::string text;
  std::istringstream lines(response.body);
  std::string line;
  while (std::getline(lines, line) && line != "data: [DONE]") {
    if (line.starts_with("data: ")) {
      const json event = json::parse(line.substr(6));
      INFO(line);
      REQUIRE(event.contains("choices"));
      text += event["choices"][0]["text"].get<std::string>();
    }
  }
  CHECK(line == "data: [DONE]");
  return text;
}

}  // namespace

TEST_CASE("a rank of a server that dies is started again, and streams continue") {
  constexpr std::int64_t tokens = 1500;
  const std::vector<std::string> words = {"--tokens", "1500"};
  const std::vector<double> temperatures = {0, 1};
  std::vector<std::string> expected;
  {
    std::vector<std::string> two = words;
    two.insert(two.end(), {"--ranks", "2"});
    const Served server(trained().long_model, two);
    for (const double temperature : temperatures) {
      expected.push_back(text_of(ask(server.port, request(temperature, tokens))));
    }
  }
  std::vector<std::string> healed = words;
  healed.insert(healed.end(), {"--ranks", "2", "--heal"});
  Served server(trained().long_model, healed);
  for (const std::size_t rank : {1, 2}) {  // the processes after the one that launches them
    INFO("rank " << rank - 1);
    std::vector<server_test::Wire> wires;
    for (const double temperature : temperatures) {
      wires.emplace_back(server.port);
      REQUIRE(wires.back().send(request(temperature, tokens)));
    }
    for (server_test::Wire& wire : wires) {
      REQUIRE(wire.readable(server_test::patience));
    }
    const std::vector<pid_t> processes = server.processes();
    REQUIRE(processes.size() == 3);
    REQUIRE(kill(processes[rank], SIGKILL) == 0);
    CHECK(ask(server.port, get("/health")).status == 200);
    for (std::size_t i = 0; i < wires.size(); ++i) {
      CHECK(text_of(wires[i].read()) == expected[i]);
    }
    CHECK(server.processes().size() == 3);
    CHECK(server.processes() != processes);
  }
  const Served::Ended ended = server.stop();
  CHECK(ended.code == 0);
  CHECK(ended.seconds < 2);
}

TEST_CASE("a server whose ranks cannot be started again ends, also where nobody asks") {
  Served server({"--heal"});
  const std::vector<pid_t> processes = server.processes();
  REQUIRE(processes.size() == 2);
  REQUIRE(kill(processes[0], SIGKILL) == 0);
  const Served::Ended ended = server.wait();
  CHECK(ended.code == 1);
  CHECK(ended.seconds < 2);
}

TEST_CASE("a stream of a server whose ranks cannot be started again ends with an error") {
  Served server(trained().long_model, {"--heal", "--tokens", "100000"});
  server_test::Wire wire(server.port);
  REQUIRE(wire.send(request(0, 100'000)));
  REQUIRE(wire.readable(server_test::patience));
  REQUIRE(kill(server.processes()[0], SIGKILL) == 0);
  CHECK(wire.read_all().find("\"error\"") != std::string::npos);
  const Served::Ended ended = server.wait();
  CHECK(ended.code == 1);
  CHECK(ended.seconds < 2);
}
