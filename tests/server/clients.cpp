// Clients that are answered at the same time, and of which many leave: the others' answers are
// those that they get alone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"

using nlohmann::json;
using server_test::Milliseconds;
using server_test::post;
using server_test::Response;
using server_test::Served;
using server_test::Wire;

namespace {

/// One of a few questions, with a temperature: what is drawn depends on the last bits of logits.
std::string question(int number, bool stream) {
  const char* const texts[] = {"Say one", "Say two", "Again", "What?",
                               "Say nothing at all, please"};
  return post(json{
      {"messages", {{{"role", "user"}, {"content", texts[number % 5]}}}},
      {"temperature", 1.5},
      {"seed", number % 7},
      {"ignore_eos", true},
      {"max_tokens", 8 + number % 11},
      {"stream",
       stream}}.dump());
}

std::string text_of(const Response& answer) {
  return json::parse(answer.body)["choices"][0]["message"]["content"].get<std::string>();
}

/// Clients that ask until `ends`, and leave in the middle of every second answer. Returns how many
/// whole answers there were; each of them is the one that `expected` has.
int ask_and_leave(int port, int clients, const std::map<int, std::string>& expected,
                  std::chrono::steady_clock::time_point ends, int questions) {
  std::atomic<int> whole = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      for (int i = 0; i < questions && std::chrono::steady_clock::now() < ends; ++i) {
        const int number = (client * 5 + i * 3) % static_cast<int>(expected.size());
        Wire wire(port);
        const bool leaves = (client + i) % 2 == 0;
        wire.send(question(number, leaves));
        if (leaves) {
          static_cast<void>(wire.readable(Milliseconds(20 * (i % 3))));
          continue;
        }
        const Response answer = wire.read();
        const bool right = answer.status == 200 && text_of(answer) == expected.at(number);
        (right ? whole : wrong) += 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(wrong == 0);
  return whole;
}

/// The answers that each gets alone.
std::map<int, std::string> alone(int port) {
  std::map<int, std::string> answers;
  for (int number = 0; number < 35; ++number) {
    const Response answer = server_test::ask(port, question(number, false));
    REQUIRE(answer.status == 200);
    answers[number] = text_of(answer);
  }
  return answers;
}

}  // namespace

TEST_CASE("clients beside others that leave get the answers that they get alone") {
  const Served server({"--waiting", "64", "--batch", "6"});
  const auto expected = alone(server.port);
  const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  CHECK(ask_and_leave(server.port, 12, expected, ends, 4) == 24);
}

TEST_CASE("a minute of clients of which half leave", "[.long]") {
  Served server({"--waiting", "256", "--batch", "16", "--memory", "200KB"});
  const auto expected = alone(server.port);
  const auto ends = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const int whole = ask_and_leave(server.port, 40, expected, ends, 1 << 20);
  std::printf("%d whole answers in a minute, 40 clients\n", whole);
  CHECK(whole > 100);
  CHECK(server.stop().seconds < 5);
}
