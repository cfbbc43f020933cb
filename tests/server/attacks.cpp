// What hostile clients send: requests within requests, malformed ones, endless ones. Each case says
// how many requests the server may have answered.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"

import tessera.base;
import tessera.app.server;

using server_test::get;
using server_test::Milliseconds;
using server_test::post;
using server_test::Response;
using server_test::Served;
using server_test::Wire;
using tessera::app::HttpAnswer;
using tessera::app::HttpHead;
using tessera::app::HttpLimits;
using tessera::app::HttpProblem;
using tessera::app::HttpRequest;
using tessera::app::HttpResponder;
using tessera::app::HttpServer;

namespace {

/// Answers with the body of a request, and counts.
class Echo : public tessera::app::HttpService {
 public:
  explicit Echo(std::string wanted = "") : token_(std::move(wanted)) {}
  std::optional<HttpAnswer> refusal(const HttpHead& head) override {
    const auto problem = tessera::app::access_problem(head, token_);
    return problem ? std::optional(error(*problem)) : std::nullopt;
  }
  void handle(HttpRequest request, HttpResponder responder) override {
    ++answered;
    responder.answer({.body = request.method + " " + request.path + " " + request.body});
  }
  HttpAnswer error(const HttpProblem& problem) override {
    return {.status = problem.status, .body = problem.text};
  }

  std::atomic<int> answered = 0;

 private:
  std::string token_;
};

HttpLimits short_times() {
  HttpLimits limits;
  limits.header_time = limits.body_time = limits.idle_time = Milliseconds(400);
  return limits;
}

/// A server in this process.
struct Here {
  explicit Here(const HttpLimits& limits = {}, const std::string& token = "")
      : echo(token), server("127.0.0.1", 0, true, limits, echo) {}
  Echo echo;
  HttpServer server;
};

/// What the server answers to these bytes until it closes or is silent: the statuses. And it must
/// have handled so many requests.
std::vector<int> statuses(Here& here, std::string_view bytes, int handled) {
  const int before = here.echo.answered;
  Wire wire(here.server.port());
  wire.send(bytes);
  wire.end_sending();
  std::vector<int> all;
  for (Response one = wire.read(); one.status != -1; one = wire.read()) {
    all.push_back(one.status);
  }
  INFO(std::string(bytes.substr(0, 300)));
  CHECK(here.echo.answered - before == handled);
  return all;
}

const std::string inner = post("hidden");

using Statuses = std::vector<int>;

}  // namespace

TEST_CASE("a refused request takes what follows it with it") {
  Here here;
  const auto with_inner = [](const std::string& head) {
    return head + "Content-Length: " + std::to_string(inner.size()) + "\r\n\r\n" + inner;
  };
  const std::string path = "POST /v1/chat/completions HTTP/1.1\r\n";
  // A page of any origin may send these without being asked about it.
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded",
                           "multipart/form-data; boundary=x", "application/jsonfoo"}) {
    CHECK(statuses(here, with_inner(path + "Host: localhost\r\nContent-Type: " + type + "\r\n"),
                   0) == Statuses{415});
  }
  CHECK(statuses(here,
                 with_inner(path + "Host: evil.example\r\nContent-Type: application/json\r\n"),
                 0) == Statuses{403});
  CHECK(statuses(here,
                 with_inner(path + "Host: localhost\r\nOrigin: http://evil.example\r\n"
                                   "Content-Type: application/json\r\n"),
                 0) == Statuses{403});
  // A body that is read is not a request either.
  CHECK(statuses(here, with_inner("GET /health HTTP/1.1\r\nHost: localhost\r\n"), 1) ==
        Statuses{200});
  CHECK(statuses(here, with_inner("OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n"), 1) ==
        Statuses{200});
  Here closed({}, "token");
  CHECK(statuses(closed, with_inner(path + "Host: localhost\r\nContent-Type: application/json\r\n"),
                 0) == Statuses{401});
}

TEST_CASE("bodies whose end is ambiguous are refused with everything behind them") {
  Here here;
  const std::string start =
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const std::string chunks = "\r\n5\r\nhello\r\n0\r\n\r\n" + inner;
  const auto refused = [&](const std::string& headers, int status) {
    CHECK(statuses(here, start + headers + chunks, 0) == Statuses{status});
  };
  refused("Content-Length: 5\r\nContent-Length: 5\r\n", 400);
  refused("Content-Length: 5\r\nContent-Length: 50\r\n", 400);
  refused("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400);
  refused("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400);
  refused("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400);
  refused("Transfer-Encoding: identity, chunked\r\n", 501);
  refused("Transfer-Encoding: chunked, identity\r\n", 501);
  refused("Transfer-Encoding: gzip\r\n", 501);
  refused("Transfer-Encoding: xchunked\r\n", 501);
  refused("Transfer-Encoding: \"chunked\"\r\n", 501);
  refused("Transfer-Encoding:\r\n", 501);
  refused("Transfer-Encoding : chunked\r\n", 400);
  refused("Transfer-Encoding\t: chunked\r\n", 400);
  refused("Transfer-Encoding\r\n : chunked\r\n", 400);
  refused("X: y\r\n Transfer-Encoding: chunked\r\n", 400);
  refused("X: y\nTransfer-Encoding: chunked\r\n", 400);
  refused("X: y\rTransfer-Encoding: chunked\r\n", 400);
  for (const char* length : {"5, 5", "+5", "-5", "0x5", "5 5", "", "5.0", "99999999999999999999"}) {
    refused("Content-Length: " + std::string(length) + "\r\n", 400);
  }
  refused("Content-Length: 18446744073709551616\r\n", 400);
  refused("Content-Length: 999999999999999999\r\n", 413);
  refused("Content-Encoding: gzip\r\n", 415);
  refused("Expect: 200-ok\r\nContent-Length: 5\r\n", 417);
  // Chunks of other sizes than they say.
  const auto malformed = [&](const std::string& body, int status) {
    CHECK(statuses(here, start + "Transfer-Encoding: chunked\r\n\r\n" + body + inner, 0) ==
          Statuses{status});
  };
  for (const char* body :
       {"5\r\nhello!\r\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "-5\r\nhello\r\n", "0x5\r\nhello\r\n",
        " 5\r\nhello\r\n", "g\r\n", "\r\n", "5\r\nhello0\r\n", "fffffffffffffffff\r\n"}) {
    malformed(body, 400);
  }
  malformed("fffffffffffffff\r\nhello\r\n", 413);
  malformed("5;" + std::string(200'000, 'x') + "\r\nhello\r\n0\r\n\r\n", 400);
  // The right ones.
  CHECK(statuses(here, start + "Transfer-Encoding: Chunked" + "\r\n" + chunks, 2) ==
        Statuses{200, 200});
  CHECK(statuses(here, start + "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\nX: y\r\n\r\n",
                 1) == Statuses{200});
}

TEST_CASE("headers that two readers may read differently are refused") {
  Here here;
  const auto refused = [&](const std::string& request, int status) {
    CHECK(statuses(here, request + inner, 0) == Statuses{status});
  };
  const auto header = [&](const std::string& line, int status) {
    refused("GET / HTTP/1.1\r\nHost: localhost\r\n" + line + "\r\n\r\n", status);
  };
  header("X: a\r\n b", 400);
  header(std::string("X: a\0b", 6), 400);
  header(std::string("X\0: a", 5), 400);
  header("X : a", 400);
  header("X", 400);
  header(": a", 400);
  header("X(: a", 400);
  header("X\xC3\xA4: a", 400);
  header("X: a\nY: b", 400);
  header("X: a\rY: b", 400);
  header("X: \x7F", 400);
  header("X: \x1B[2J", 400);
  header("Host: localhost", 400);
  header("Host: evil.example", 400);
  header("Authorization: a\r\nAuthorization: b", 400);
  refused("GET / HTTP/1.1\r\n\r\n", 400);
  refused("GET / HTTP/1.1\r\nHost:\r\n\r\n", 403);
  refused("GET / HTTP/1.1\nHost: localhost\n\n", 400);
  refused(" GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  refused("\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  refused("GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  refused("GET / x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  refused("GET /\r\nHost: localhost\r\n\r\n", 400);
  for (const char* version :
       {"HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/11", "http/1.1", "HTTP/1.1 "}) {
    refused("GET / " + std::string(version) + "\r\nHost: localhost\r\n\r\n", 400);
  }
  for (const char* target : {"http://localhost/", "http://evil.example/", "*", "localhost:80",
                             "/#a", "/\x80", "//\x01"}) {
    refused("GET " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  }
  refused("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400);
  refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
  refused("\x16\x03\x01\x02", 400);
  refused("GET /" + std::string(9000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414);
  header("X: " + std::string(40000, 'x'), 431);
  std::string many;
  for (int i = 0; i < 120; ++i) {
    many += "X" + std::to_string(i) + ": y\r\n";
  }
  header(many + "Z: z", 431);
  // No change of the protocol: the request is answered as it is.
  CHECK(statuses(here, get("/", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"), 1) ==
        Statuses{200});
}

TEST_CASE("requests one after the other, in one packet, half-closed, and of HTTP/1.0") {
  Here here;
  CHECK(statuses(here, get("/a") + post("b") + get("/c"), 3) == Statuses{200, 200, 200});
  CHECK(statuses(here, get("/a", "Connection: close\r\n") + get("/b"), 1) == Statuses{200});
  CHECK(statuses(here, "GET / HTTP/1.0\r\n\r\n", 1) == Statuses{200});
  CHECK(statuses(here, "GET / HTTP/1.0\r\n\r\n" + get("/b"), 1) == Statuses{200});
  CHECK(statuses(here, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get("/b"), 2) ==
        Statuses{200, 200});
  CHECK(statuses(here, "GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n", 0) == Statuses{403});
  CHECK(statuses(here, get("/a").substr(0, 20), 0).empty());
  CHECK(statuses(here, post("hello").substr(0, post("hello").size() - 1), 0).empty());
  {
    Wire wire(here.server.port());
    wire.send("HEAD /health HTTP/1.1\r\nHost: LOCALHOST\r\nConnection: close\r\n\r\n");
    const std::string all = wire.read_all();
    CHECK(all.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(all.find("Content-Length: 13\r\n") != std::string::npos);
    CHECK(all.ends_with("\r\n\r\n"));
  }
  // A client that waits to be asked for its body.
  Wire wire(here.server.port());
  wire.send(post("hello", "Expect: 100-continue\r\n").substr(0, post("hello").size() + 17));
  CHECK(wire.read().status == 100);
  wire.send("hello");
  CHECK(wire.read().body == "POST /v1/chat/completions hello");
  // The connection is used again, byte by byte.
  for (const char byte : get("/next?query")) {
    wire.send({&byte, 1});
  }
  CHECK(wire.read().body == "GET /next ");
}

TEST_CASE("nothing is kept beyond the limits") {
  Here here;
  const auto taken = [&](std::string_view begin, std::string_view repeated, std::size_t most) {
    Wire wire(here.server.port());
    bool open = wire.send(begin);
    std::size_t sent = 0;
    while (open && sent < most) {
      open = wire.send(repeated);
      sent += repeated.size();
    }
    return sent;
  };
  const std::string block(std::size_t{1} << 16, 'x');
  constexpr std::size_t much = std::size_t{100} << 20;
  const std::string chunk = "10000\r\n" + block + "\r\n";
  std::string lines;
  while (lines.size() < block.size()) {
    lines += "X: y\r\n";
  }
  const std::string start =
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  CHECK(taken("GET / HTTP/1.1\r\n", lines, much) < much);
  CHECK(taken("GET /", block, much) < much);
  CHECK(taken(start + "X: ", block, much) < much);
  CHECK(taken(start + "Transfer-Encoding: chunked\r\n\r\n", chunk, much) < much);
  CHECK(taken(start + "Transfer-Encoding: chunked\r\n\r\n1;", block, much) < much);
  CHECK(taken(start + "Transfer-Encoding: chunked\r\n\r\n0\r\n", lines, much) < much);
  CHECK(taken(start + "Content-Length: 1000000000\r\n\r\n", block, much) < much);
  CHECK(here.echo.answered == 0);
}

TEST_CASE("requests that take too long end, and so do connections without one") {
  HttpLimits limits = short_times();
  Here here(limits);
  const auto trickled = [&](const std::string& begin) {
    Wire wire(here.server.port());
    wire.send(begin);
    for (int i = 0; i < 100 && !wire.readable(Milliseconds(50)); ++i) {
      wire.send("x");
    }
    return wire.read(Milliseconds(5000)).status;
  };
  CHECK(trickled("GET /") == 408);
  CHECK(trickled("GET / HTTP/1.1\r\nX: ") == 408);
  CHECK(trickled("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                 "Content-Length: 1000\r\n\r\n") == 408);
  Wire silent(here.server.port());
  CHECK(silent.closed(Milliseconds(5000)));
  Wire used(here.server.port());
  used.send(get("/"));
  CHECK(used.read().status == 200);
  CHECK(used.closed(Milliseconds(5000)));
  CHECK(here.echo.answered == 1);
  // One that has got its answer, and neither reads nor closes.
  Wire refused(here.server.port());
  refused.send("x y\r\n\r\n");
  CHECK(refused.read().status == 400);
  CHECK(refused.closed(Milliseconds(5000)));
  limits.requests_of_connection = 2;
  Here few(limits);
  CHECK(statuses(few, get("/a") + get("/b") + get("/c"), 2) == Statuses{200, 200});
}

namespace {

/// Answers when the test does.
class Held : public Echo {
 public:
  void handle(HttpRequest request, HttpResponder responder) override {
    if (request.path != "/held") {
      Echo::handle(std::move(request), std::move(responder));
      return;
    }
    responder.on_leave([this] { ++left; });
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(responder));
  }
  /// The next request that came.
  HttpResponder next() {
    for (int i = 0; i < 6000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (!held_.empty()) {
          HttpResponder first = std::move(held_.front());
          held_.pop_front();
          return first;
        }
      }
      poll(nullptr, 0, 10);
    }
    FAIL("no request has come");
    return HttpResponder(nullptr);
  }

  std::atomic<int> left = 0;

 private:
  std::mutex mutex_;
  std::deque<HttpResponder> held_;
};

void wait_for(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000 && !condition(); ++i) {
    poll(nullptr, 0, 10);
  }
  REQUIRE(condition());
}

}  // namespace

TEST_CASE("a full server drops who has waited longest, and never who has a request") {
  HttpLimits limits;
  limits.connections = 8;
  limits.connections_of_address = 6;
  Held held;
  HttpServer server("127.0.0.1", 0, true, limits, held);
  std::vector<Wire> working;
  std::vector<HttpResponder> responders;
  for (int i = 0; i < 3; ++i) {
    working.emplace_back(server.port());
    working.back().send(get("/held"));
    responders.push_back(held.next());
  }
  std::vector<Wire> idle;
  for (int i = 0; i < 50; ++i) {
    idle.emplace_back(server.port());
    CHECK(server_test::ask(server.port(), get("/honest", "Connection: close\r\n")).status == 200);
  }
  CHECK(idle.front().closed(Milliseconds(5000)));
  CHECK(!idle.back().closed(Milliseconds(0)));
  CHECK(held.left == 0);
  for (std::size_t i = 0; i < working.size(); ++i) {
    responders[i].answer({.body = "late"});
    CHECK(working[i].read().body == "late");
  }
}

TEST_CASE("a client that leaves is noticed at once, and one that only sends no more is not") {
  Held held;
  HttpServer server("127.0.0.1", 0, true, {}, held);
  int left = 0;
  for (const std::string& request :
       {get("/held"), std::string("GET /held HTTP/1.0\r\n\r\n"), get("/held") + get("/next"),
        get("/held") + std::string(100'000, 'x')}) {
    Wire wire(server.port());
    wire.send(request);
    const HttpResponder responder = held.next();
    wire.close();
    ++left;
    wait_for([&] { return held.left == left; });
  }
  Wire half(server.port());
  half.send(get("/held"));
  half.end_sending();
  const HttpResponder whole = held.next();
  poll(nullptr, 0, 200);
  CHECK(held.left == left);
  whole.answer({.body = "whole"});
  CHECK(half.read().body == "whole");
  // In a stream.
  for (const bool leaves : {false, true}) {
    Wire wire(server.port());
    wire.send(get("/held"));
    const HttpResponder stream = held.next();
    stream.begin({.type = "text/event-stream", .body = "begin "}, ":\n\n");
    CHECK(wire.readable(Milliseconds(5000)));
    if (leaves) {
      wire.close();
      ++left;
      wait_for([&] { return held.left == left; });
      continue;
    }
    wire.end_sending();
    poll(nullptr, 0, 100);
    stream.write("part");
    stream.end();
    CHECK(wire.read().body == "begin :\n\npart");
  }
}

TEST_CASE("a client that does not read is dropped, and an answer that nobody gives is an error") {
  HttpLimits limits;
  limits.unread_bytes = 1 << 16;
  limits.unread_time = Milliseconds(300);
  Held held;
  HttpServer server("127.0.0.1", 0, true, limits, held);
  Wire flooded(server.port());
  flooded.send(get("/held"));
  const HttpResponder stream = held.next();
  stream.begin({}, "");
  for (int i = 0; i < 100'000 && held.left == 0; ++i) {
    stream.write(std::string(1000, 'x'));
  }
  wait_for([&] { return held.left == 1; });
  // The end of a large answer that stays with the client.
  Wire slow(server.port());
  slow.send(get("/held"));
  const HttpResponder large = held.next();
  large.answer({.body = std::string(std::size_t{64} << 20, 'x')});
  wait_for([&] { return held.left == 2; });
  Wire forgotten(server.port());
  forgotten.send(get("/held"));
  static_cast<void>(held.next());
  CHECK(forgotten.read().status == 500);
}

TEST_CASE("mutated requests end soon, and the server answers afterwards") {
  Here here(short_times());
  std::mt19937 random(7);
  const std::vector<std::string> seeds = {
      get("/health"), post("{\"messages\": []}", "Accept: */*\r\nConnection: keep-alive\r\n"),
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"};
  const std::vector<std::string> pieces = {"\r\n",
                                           "\n",
                                           "\r",
                                           ":",
                                           " ",
                                           std::string(1, '\0'),
                                           "Content-Length: 3\r\n",
                                           "Transfer-Encoding: chunked\r\n",
                                           "\r\n\r\n",
                                           "HTTP/1.1",
                                           "\xFF",
                                           "0\r\n\r\n"};
  const auto below = [&](std::size_t most) { return random() % most; };
  for (int i = 0; i < 4000; ++i) {
    std::string request = seeds[below(seeds.size())];
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(request.size() + 1);
      switch (below(4)) {
        case 0:
          request.insert(at, pieces[below(pieces.size())]);
          break;
        case 1:
          request.erase(at, below(8));
          break;
        case 2:
          request = request.substr(0, at) + request.substr(at / 2);
          break;
        default:
          request.insert(at, 1, static_cast<char>(below(256)));
      }
    }
    Wire wire(here.server.port());
    wire.send(request);
    wire.end_sending();
    static_cast<void>(wire.read_all(Milliseconds(10'000)));
    REQUIRE(wire.closed(Milliseconds(0)));
  }
  here.server.check();
  CHECK(server_test::ask(here.server.port(), get("/health")).status == 200);
}

TEST_CASE("a crowd of slow clients keeps nobody out, costs no threads, and delays no end") {
  Served server({});
  const int threads = server.threads();
  std::vector<Wire> crowd;
  for (int i = 0; i < 225; ++i) {
    crowd.emplace_back(server.port);
    if (i >= 200) {
      crowd.back().send("POST /v1/chat/completions HTTP/1.1\r\nX: ");
    }
  }
  const auto trickle = [&] {
    for (std::size_t i = 200; i < crowd.size(); ++i) {
      crowd[i].send("x");
    }
  };
  trickle();
  const std::string question =
      post(R"({"messages": [{"role": "user", "content": "Say one"}], "stream": true})");
  for (int i = 0; i < 3; ++i) {
    const Response answer = server_test::ask(server.port, question);
    CHECK(answer.status == 200);
    CHECK(answer.body.ends_with("data: [DONE]\n\n"));
    trickle();
  }
  CHECK(server.threads() == threads);
  const auto ended = server.stop();
  CHECK(ended.code == 0);
  CHECK(ended.seconds < 2);
}

TEST_CASE("endless headers and bodies cost no memory") {
  const Served server({});
  static_cast<void>(server_test::ask(server.port, get("/health")));
  const std::size_t before = server.peak_bytes();
  const std::string block(std::size_t{1} << 20, 'x');
  const std::string chunk = "100000\r\n" + block + "\r\n";
  std::string lines;
  while (lines.size() < block.size()) {
    lines += "Name: value\r\n";
  }
  for (int i = 0; i < 20; ++i) {
    Wire headers(server.port);
    headers.send("GET / HTTP/1.1\r\n");
    for (int sent = 0; sent < 230 && headers.send(lines); ++sent) {
    }
    Wire body(server.port);
    body.send(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    for (int sent = 0; sent < 600 && body.send(chunk); ++sent) {
    }
  }
  CHECK(server.peak_bytes() - before < (std::size_t{8} << 20));
}
