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
#include "trained.hpp"

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

namespace {

/// A number of /metrics.
double metric(int port, const std::string& name) {
  const std::string text = "\n" + server_test::ask(port, server_test::get("/metrics")).body;
  const std::size_t at = text.find("\n" + name + " ");
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + name.size() + 2));
}

/// A prompt whose keys and values need most of the server's memory. Where pages were lost, it waits
/// for ever.
Response ask_for_all_memory(int port) {
  return server_test::ask(
      port,
      post(
          json{{"prompt", std::vector<int>(400, 65)}, {"max_tokens", 2}, {"temperature", 0}}.dump(),
          "", "/v1/completions"));
}

}  // namespace

TEST_CASE("ten thousand requests of two hundred clients, of which half leave, cost no memory",
          "[.long]") {
  constexpr int clients = 200;
  constexpr int requests = 10'000;
  constexpr std::size_t mib = std::size_t{1} << 20;
  // Those that have left are connections until the server has seen it.
  Served server(generation_test::trained().long_model,
                {"--waiting", "512", "--batch", "64", "--memory", "400KB", "--connections", "1000",
                 "--connections-per-address", "1000"});
  const auto expected = alone(server.port);
  const Response most = ask_for_all_memory(server.port);
  REQUIRE(most.status == 200);
  const auto ends = std::chrono::steady_clock::now() + std::chrono::hours(1);
  // What is prepared for the shapes of products is there after some of them.
  const int first = ask_and_leave(server.port, clients, expected, ends, 10);
  const std::size_t before = server.bytes();
  const auto begin = std::chrono::steady_clock::now();
  const int rest = ask_and_leave(server.port, clients, expected, ends, requests / clients);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::size_t after = server.bytes();
  std::printf("%d requests, %d whole answers, %.0f s: %.1f MiB before, %.1f MiB after\n", requests,
              rest, seconds, static_cast<double>(before) / mib, static_cast<double>(after) / mib);
  CHECK(first == clients * 10 / 2);
  CHECK(rest == requests / 2);
  CHECK(after < before + 16 * mib);
  const auto texts = [](const Response& answer) {
    return json::parse(answer.body)["choices"][0]["text"].get<std::string>();
  };
  const Response again = ask_for_all_memory(server.port);
  REQUIRE(again.status == 200);
  CHECK(texts(again) == texts(most));
  CHECK(alone(server.port) == expected);
  CHECK(metric(server.port, "tessera_texts_waiting") == 0);
  CHECK(metric(server.port, "tessera_pages_used") == 0);
  CHECK(server.stop().seconds < 2);
}
