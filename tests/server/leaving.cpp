// Clients that leave, in each phase of their requests: how long does the next one wait?
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
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

/// A request whose answer takes minutes: nothing ends it but its length.
std::string endless(bool stream) {
  return post(json{
      {"messages", {{{"role", "user"}, {"content", "Say one"}}}},
      {"ignore_eos", true},
      {"temperature", 5},
      {"stream",
       stream}}.dump());
}

std::string short_question() {
  return post(
      json{{"messages", {{{"role", "user"}, {"content", "Say one"}}}}, {"max_tokens", 2}}.dump());
}

double seconds_of_next(int port) {
  const auto begin = std::chrono::steady_clock::now();
  const Response answer = server_test::ask(port, short_question());
  CHECK(answer.status == 200);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("a client that leaves in any phase leaves the model to the next one") {
  // Letters that no merge joins, so that the model reads it for many seconds.
  std::string text;
  for (int i = 0; i < 60'000; ++i) {
    text += i % 2 == 0 ? 'q' : 'Z';
  }
  const std::string long_prompt =
      post(json{{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 1}}.dump());
  for (const std::vector<std::string>& ranks :
       std::vector<std::vector<std::string>>{{}, {"--ranks", "2"}}) {
    std::vector<std::string> words = {"--tokens", "10000000", "--waiting", "2", "--batch", "1"};
    words.insert(words.end(), ranks.begin(), ranks.end());
    const Served server(generation_test::trained().long_model, words);
    for (const bool stream : {false, true}) {
      INFO("ranks " << ranks.size() << ", stream " << stream);
      {
        Wire wire(server.port);  // in the header, and in the body
        wire.send(endless(stream).substr(0, 60));
        Wire other(server.port);
        other.send(endless(stream).substr(0, endless(stream).size() - 5));
      }
      CHECK(seconds_of_next(server.port) < 5);
      {
        Wire wire(server.port);  // at work
        wire.send(endless(stream));
        CHECK(wire.readable(stream ? server_test::patience : Milliseconds(300)) == stream);
        std::vector<Wire> waiting;  // in the queue, which is full
        for (int i = 0; i < 2; ++i) {
          waiting.emplace_back(server.port);
          waiting.back().send(endless(stream));
        }
        CHECK(!waiting.back().readable(Milliseconds(300)));
        CHECK(server_test::ask(server.port, short_question()).status == 503);
      }
      CHECK(seconds_of_next(server.port) < 5);
    }
    {
      Wire wire(server.port);  // while its prompt is read
      wire.send(long_prompt);
      CHECK(!wire.readable(Milliseconds(500)));
    }
    CHECK(seconds_of_next(server.port) < 5);
  }
}

TEST_CASE("who only sends no more gets the whole answer") {
  const Served server({});
  Wire wire(server.port);
  wire.send(short_question());
  wire.end_sending();
  const Response answer = wire.read();
  CHECK(answer.status == 200);
  CHECK(json::parse(answer.body)["usage"]["completion_tokens"] == 2);
}

TEST_CASE("a server at work ends within two seconds, on several ranks too") {
  for (const std::vector<std::string>& ranks :
       std::vector<std::vector<std::string>>{{}, {"--ranks", "2"}, {"--context", "2"}}) {
    for (const int signal : {SIGTERM, SIGINT}) {
      std::vector<std::string> words = {"--tokens", "10000000"};
      words.insert(words.end(), ranks.begin(), ranks.end());
      Served server(generation_test::trained().long_model, words);
      Wire stream(server.port);
      stream.send(endless(true));
      CHECK(stream.readable(server_test::patience));
      Wire waits(server.port);
      waits.send(endless(false));
      CHECK(!waits.readable(Milliseconds(200)));
      Wire silent(server.port);
      const auto ended = server.stop(signal);
      CHECK(ended.code == 0);
      CHECK(ended.seconds < 5);  // two where nothing else runs
      CHECK(waits.read().status == 503);
      CHECK(stream.read_all().find("the server stops") != std::string::npos);
    }
  }
}
