// Who may use the model: tokens and their files, hosts, origins, types of bodies.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "http_client.hpp"
#include "served.hpp"
#include "support.hpp"
#include "trained.hpp"

import tessera.base;
import tessera.app.server;

using generation_test::trained;
using server_test::ask;
using server_test::get;
using server_test::post;
using server_test::Served;
using tessera::app::access_problem;
using tessera::app::HttpHead;
using tessera::app::read_token;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::input_error;

namespace {

const char* const host = "host";

/// The status with which the header is refused; 0: it is not.
int status_of(const std::vector<tessera::app::HttpHeader>& headers, const std::string& token = "",
              const std::string& method = "GET") {
  HttpHead head;
  head.method = method;
  head.headers = headers;
  const auto problem = access_problem(head, token);
  return problem ? problem->status : 0;
}

int status_of_host(const std::string& name) { return status_of({{host, name}}); }

std::string written(const Folder& folder, const std::string& text, mode_t mode = 0600) {
  std::string path = folder.write("token", text);
  REQUIRE(chmod(path.c_str(), mode) == 0);
  return path;
}

}  // namespace

TEST_CASE("without a token, requests must name this machine as their host") {
  for (const char* name : {"localhost", "LOCALHOST", "LocalHost.", "localhost:8080", "127.0.0.1",
                           "127.0.0.1:1", "127.9.8.7", "[::1]", "[::1]:80", "localhost:"}) {
    INFO(name);
    CHECK(status_of_host(name) == 0);
  }
  for (const char* name :
       {"", "evil.example", "localhost.evil.example", "evil-localhost", "localhost:80.evil",
        "localhost:123456", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::2]", "[::1",
        "128.0.0.1", "0x7f.1", "2130706433", "localhost..", "[::1].evil", "::1", "1270.0.0.1",
        "localhost evil"}) {
    INFO(name);
    CHECK(status_of_host(name) == 403);
  }
  CHECK(status_of({}) == 0);  // HTTP/1.0
}

TEST_CASE("without a token, pages of other machines are refused by their origin") {
  const auto of = [](const std::string& origin) {
    return status_of({{host, "localhost"}, {"origin", origin}});
  };
  CHECK(of("http://localhost:3000") == 0);
  CHECK(of("https://127.0.0.1") == 0);
  CHECK(of("chrome-extension://abcdef") == 0);
  CHECK(of("http://evil.example") == 403);
  CHECK(of("HTTPS://evil.example") == 403);
  CHECK(of("http://localhost.evil.example") == 403);
  CHECK(of("null") == 403);
  CHECK(of("") == 403);
}

TEST_CASE("bodies must be JSON, which browsers ask about before they send it") {
  const auto of = [](const std::string& type) {
    return status_of({{host, "localhost"}, {"content-type", type}}, "", "POST");
  };
  CHECK(of("application/json") == 0);
  CHECK(of("Application/JSON; charset=utf-8") == 0);
  CHECK(of("application/json ;charset=utf-8") == 0);
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
        "application/jsonfoo", "application/json+x", "application/json, text/plain",
        "text/plain; application/json", "", ";application/json"}) {
    INFO(type);
    CHECK(of(type) == 415);
  }
  CHECK(status_of({{host, "localhost"}}, "", "POST") == 415);
}

TEST_CASE("a token is compared as it is written") {
  const auto of = [](const std::string& sent, const std::string& token) {
    return status_of({{host, "any.example"}, {"authorization", sent}}, token);
  };
  for (const char* token : {"s3cret", "a%20b%41", "100%", "%", "\"'\\&<>", "a b", "p\xC3\xA4ss"}) {
    INFO(token);
    CHECK(of("Bearer " + std::string(token), token) == 0);
    CHECK(of("bearer  " + std::string(token), token) == 0);
    CHECK(of("Bearer " + std::string(token) + "x", token) == 401);
    CHECK(of("Bearer x" + std::string(token), token) == 401);
    CHECK(of("Bearer", token) == 401);
    CHECK(of("Bearer ", token) == 401);
    CHECK(of(token, token) == 401);
    CHECK(of("Basic " + std::string(token), token) == 401);
  }
  CHECK(of("Bearer a b", "a%20b") == 401);
  CHECK(of("Bearer s3crets3cret", "s3cret") == 401);
  CHECK(status_of({}, "s3cret") == 401);
}

TEST_CASE("a file of a token is read where nobody else may read or change it") {
  const Folder folder;
  CHECK(read_token(written(folder, "a%b\n")) == "a%b");
  CHECK(read_token(written(folder, " \ta b\t\r\nmore\n")) == "a b");
  CHECK(read_token(written(folder, "x", 0400)) == "x");
  CHECK(read_token(written(folder, std::string(4096, 'x'))).size() == 4096);
  const auto refused = [&](const std::string& text, mode_t mode, const std::string& part) {
    const std::string path = written(folder, text, mode);
    has(input_error([&] { static_cast<void>(read_token(path)); }), part);
    std::filesystem::remove(path);
  };
  for (const mode_t mode : {0604U, 0602U, 0620U, 0640U, 0644U, 0666U}) {
    refused("x", mode, "the file of the token can be read or changed by other users");
    refused("x", mode, "chmod 600 ");
  }
  refused("", 0600, "the first line of the file of the token is empty");
  refused(" \r\nx", 0600, "the first line of the file of the token is empty");
  refused("a\x01z", 0600, "control character");
  refused(std::string("a\0z", 3), 0600, "control character");
  refused(std::string(4097, 'x'), 0600, "larger than 4096 bytes");
  const std::string pipe = (folder.path() / "pipe").string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  has(input_error([&] { static_cast<void>(read_token(pipe)); }), "not a regular file");
  has(input_error([&] { static_cast<void>(read_token(folder.path().string())); }),
      "not a regular file");
  has(input_error([] { static_cast<void>(read_token("/nowhere")); }), "cannot be read");
  if (geteuid() == 0) {
    const std::string path = written(folder, "x");
    REQUIRE(chown(path.c_str(), 12345, 12345) == 0);
    has(input_error([&] { static_cast<void>(read_token(path)); }), "belongs to another user");
  }
}

TEST_CASE("an address of other machines needs a token, whatever its name is") {
  const auto refused = [](const std::string& words) {
    const auto result =
        trainer_test::run_program("serve " + trained().model + " --port 0 --host " + words);
    CHECK(result.code == 2);
    return result.error;
  };
  has(refused("0.0.0.0"), "other machines could use the model without a token");
  has(refused("::"), "other machines could use the model without a token");
  has(refused("203.0.113.1 --token-file " +
              [] {
                const std::string path = trained().write("token", "x\n");
                REQUIRE(chmod(path.c_str(), 0600) == 0);
                return path;
              }()),
      "the server cannot listen at this address");
}

TEST_CASE("a stranger gets nothing from a server with a token, and its error says nothing") {
  const std::string path = trained().write("secret", "100%s3cret\r\nanother line\n");
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  const Served server({"--token-file", path});
  const std::string body =
      R"({"messages": [{"role": "user", "content": "Say one"}], "max_tokens": 2})";
  const std::string right = "Authorization: Bearer 100%s3cret\r\n";
  CHECK(ask(server.port, server_test::get("/v1/models", right)).status == 200);
  CHECK(ask(server.port, server_test::post(body, right)).status == 200);
  for (const std::string& request :
       {server_test::get("/v1/models"), server_test::get("/health"), server_test::get("/"),
        server_test::post(body), server_test::post(body, "Authorization: Bearer 100s3cret\r\n"),
        server_test::post(body, "Authorization: Bearer another line\r\n")}) {
    const server_test::Response response = ask(server.port, request);
    CHECK(response.status == 401);
    CHECK(response.headers.at("www-authenticate") == "Bearer");
    CHECK(response.headers.at("connection") == "close");
    CHECK(server_test::error_in(response) == "the token is missing or wrong");
  }
}

TEST_CASE("the page in a browser runs nothing but its own script, and is for this machine") {
  const Served server({"--page"});
  const auto page = ask(server.port, get("/"));
  REQUIRE(page.status == 200);
  CHECK(page.headers.at("content-type") == "text/html; charset=utf-8");
  const std::string policy = page.headers.at("content-security-policy");
  const std::string before = "script-src 'nonce-";
  const std::string nonce = policy.substr(policy.find(before) + before.size(), 32);
  CHECK(policy == "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" +
                      nonce +
                      "'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                      "frame-ancestors 'none'");
  CHECK(page.headers.at("x-frame-options") == "DENY");
  CHECK(page.headers.at("x-content-type-options") == "nosniff");
  has(page.body, "<script nonce=\"" + nonce + "\">");
  has(page.body, "<style nonce=\"" + nonce + "\">");
  CHECK(ask(server.port, get("/")).body.find(nonce) == std::string::npos);
  // Neither markup of a model nor anything of other servers.
  for (const char* const part : {"innerHTML", "insertAdjacent", "document.write", "eval(", "://",
                                 " src=", " href=", " style=", " onclick=", "NONCE"}) {
    INFO(part);
    CHECK(page.body.find(part) == std::string::npos);
  }
  CHECK(ask(server.port, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").status == 403);
  CHECK(ask(server.port, post("{}", "", "/")).status == 405);
  CHECK(ask(Served({}).port, get("/")).status == 404);
}

TEST_CASE("the page is there without the token, and nothing else is") {
  const std::string path = trained().write("page_token", "secret\n");
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  const Served server({"--page", "--token-file", path});
  CHECK(ask(server.port, get("/")).status == 200);
  CHECK(ask(server.port, get("/")).body.find("secret") == std::string::npos);
  for (const char* const other :
       {"/v1/models", "/health", "/metrics", "/?", "/v1/models/x", "//"}) {
    INFO(other);
    const int expected =
        std::string(other) == "/?" ? 200 : 401;  // a query is not a part of the path
    CHECK(ask(server.port, get(other)).status == expected);
  }
  CHECK(ask(server.port, post("{}", "", "/")).status == 401);
  CHECK(ask(server.port, post("{}")).status == 401);
}
