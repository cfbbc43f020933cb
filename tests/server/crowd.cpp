// A server for whom crowds of clients are nothing: thousands of connections, hundreds of slow ones
// beside an honest one, requests in thousands.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"

using server_test::Milliseconds;
using server_test::post;
using server_test::Response;
using server_test::Served;
using server_test::Wire;

namespace {

const std::string question =
    post(R"({"messages": [{"role": "user", "content": "Say one"}], "stream": true})");

/// Files that this process may open.
std::size_t may_open(std::size_t wanted) {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, wanted + 100);
  setrlimit(RLIMIT_NOFILE, &files);
  return std::min<std::size_t>(wanted, files.rlim_cur - 100);
}

/// The median of the seconds to the first part of an answer.
double first_token(int port) {
  std::vector<double> seconds;
  for (int i = 0; i < 61; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    Wire wire(port);
    wire.send(question);
    REQUIRE(wire.readable(server_test::patience));
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    const Response answer = wire.read();
    REQUIRE(answer.status == 200);
    REQUIRE(answer.body.ends_with("data: [DONE]\n\n"));
  }
  std::ranges::nth_element(seconds, seconds.begin() + 30);
  return seconds[30];
}

}  // namespace

TEST_CASE("hundreds of slow clients do not delay the first token of an honest one") {
  const Served server({"--connections", "700", "--connections-per-address", "700",
                       "--header-seconds", "3600", "--body-seconds", "3600"});
  first_token(server.port);
  const double alone = std::min(first_token(server.port), first_token(server.port));
  std::vector<Wire> slow;
  for (int i = 0; i < 600; ++i) {
    slow.emplace_back(server.port);
    slow.back().send(i % 2 == 0 ? std::string("POST / HTTP/1.1\r\nX: ") : question.substr(0, 130));
  }
  std::atomic<bool> ends = false;
  std::thread trickle([&] {
    while (!ends) {  // each client a byte every two seconds
      for (std::size_t i = 0; i < slow.size() && !ends; ++i) {
        slow[i].send(" ");
        poll(nullptr, 0, i % 3 == 0 ? 10 : 0);
      }
    }
  });
  const double beside = std::min(first_token(server.port), first_token(server.port));
  ends = true;
  trickle.join();
  std::printf("first token: %.2f ms alone, %.2f ms beside 600 slow clients (%+.1f%%)\n",
              alone * 1e3, beside * 1e3, (beside / alone - 1) * 100);
  CHECK(beside < alone * 1.5 + 0.005);
  for (Wire& wire : slow) {
    REQUIRE(!wire.readable(Milliseconds(0)));  // each of them is still connected
  }
}

TEST_CASE("ten thousand connections leave the server as it was") {
  Served server({});
  static_cast<void>(server_test::ask(server.port, question));
  const std::size_t before = server.peak_bytes();
  const std::size_t count = may_open(10'000);
  std::vector<Wire> all;
  std::vector<double> seconds;
  for (std::size_t i = 0; i < count; ++i) {
    all.emplace_back(server.port);
    if (i % 3 == 0) {
      all.back().send("GET /health HTTP/1.1\r\n");
    }
    if (i % 500 == 0) {
      CHECK(server_test::ask(server.port, question).status == 200);
    }
  }
  std::printf("%zu connections: %+.1f MiB\n", count,
              static_cast<double>(server.peak_bytes() - before) / (1 << 20));
  CHECK(server.peak_bytes() - before < (std::size_t{64} << 20));
  const auto ended = server.stop();
  CHECK(ended.code == 0);
  CHECK(ended.seconds < 2);
}

TEST_CASE("four thousand requests have four thousand answers") {
  Served server({"--waiting", "64"});
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&] {
      Wire wire(server.port);
      for (int i = 0; i < 500; ++i) {
        wire.send(question);
        const Response answer = wire.read();
        answered += answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n") ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  CHECK(answered == 4000);
  CHECK(server.stop().seconds < 2);
}
