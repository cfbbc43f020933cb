// The schemes https and hf with servers of the test.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"
#include "hub_server.hpp"

import tessera.base;
import tessera.stores;

using namespace tessera;
using namespace tessera::stores;
using namespace tessera::testing;
using Catch::Contains;

namespace {

StoreRules quick_rules() {
  return {.limits = {.connect_seconds = 2, .stalled_seconds = 1, .answer_seconds = 2},
          .retries = {.tries = 3, .first_pause = 0.001, .longest_pause = 0.002}};
}

std::string all_of(OpenStore& store, const std::string& name) {
  const ObjectFacts facts = store.facts(name);
  std::string text(facts.size, '\0');
  store.read(name, facts, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// A server with one file, "/d/file name.txt".
struct FileServer {
  std::string bytes = random_bytes(100000, 1);
  std::string headers = "ETag: \"one\"\r\n";
  std::function<void(const Request& request, Reply& reply)> change = [](const Request&, Reply&) {};
  HttpServer server{[this](const Request& request) {
    Reply reply{.code = 404, .body = "no such file\x1b[31m"};
    if (request.path == "/d/file%20name.txt") {
      reply = ranged(request, bytes, headers);
    }
    change(request, reply);
    return reply;
  }};
  Address address() const { return Address(server.url() + "/d/file%20name.txt"); }
};

/// The environment of the hub's scheme.
class HubEnvironment : public Folder {
 public:
  HubEnvironment() {
    setenv("HF_HOME", path().c_str(), 1);
    setenv("HF_ENDPOINT", hub.url().c_str(), 1);
    unsetenv("HF_TOKEN");
    unsetenv("HUGGING_FACE_HUB_TOKEN");
    unsetenv("HF_TOKEN_PATH");
    hub.state.files = {
        {"config.json", {"hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"}},
        {"sub/model.safetensors", {random_bytes(300000, 2)}},
        {"sub/empty", {"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"}},
    };
  }
  HubServer hub;
};

}  // namespace

TEST_CASE("a file of a server is read by ranges") {
  FileServer files;
  OpenStore store(files.address(), quick_rules());
  CHECK(store.facts("").size == files.bytes.size());
  CHECK(store.facts("").version == "\"one\"");
  CHECK(all_of(store, "") == files.bytes);
  std::string part(1000, '\0');
  store.read("", store.facts(""), 777, std::as_writable_bytes(std::span(part)));
  CHECK(part == files.bytes.substr(777, 1000));
  CHECK_THAT(error_of([&] { OpenStore(Address(files.server.url() + "/d/x")).facts(""); }),
             Contains("/d/x: the server answers 404") && Contains("check the address"));
  CHECK_THAT(error_of([&] { OpenStore(Address(files.server.url())).facts(""); }),
             Contains("names a server and no file"));
}

TEST_CASE("a server without ranges, without HEAD or without a length is read or refused") {
  FileServer files;
  files.change = [](const Request& request, Reply& reply) {
    if (request.method == "HEAD") {
      reply = {.code = 405};
    }
  };
  OpenStore store(files.address(), quick_rules());
  CHECK(all_of(store, "") == files.bytes);
  files.change = [&](const Request&, Reply& reply) {
    reply = {.code = 200, .body = files.bytes, .headers = files.headers};
  };
  CHECK(all_of(store, "") == files.bytes);
  std::string part(1000, '\0');
  store.read("", store.facts(""), 777, std::as_writable_bytes(std::span(part)));
  CHECK(part == files.bytes.substr(777, 1000));
  files.change = [&](const Request&, Reply& reply) {
    reply = {.code = 200, .body = files.bytes, .headers = files.headers, .no_length = true};
  };
  CHECK_THAT(error_of([&] { store.facts(""); }), Contains("does not say how large it is"));
}

TEST_CASE("a file that changes, wrong ranges and encodings are errors") {
  FileServer files;
  OpenStore store(files.address(), quick_rules());
  const ObjectFacts facts = store.facts("");
  std::string all(facts.size, '\0');
  const auto error = [&] {
    return error_of([&] { store.read("", facts, 0, std::as_writable_bytes(std::span(all))); });
  };
  files.headers = "ETag: \"two\"\r\n";
  CHECK_THAT(error(), Contains("it has changed on the server"));
  files.headers = "ETag: \"one\"\r\n";
  CHECK(error() == "no error");
  files.bytes += "x";
  CHECK_THAT(error(), Contains("it has another size now (expected 100000, got 100001)"));
  files.bytes.pop_back();
  for (const char* const range :
       {"bytes 1-100000/100000", "bytes 5-4/100000", "bytes 0-99999/99999", "bytes x-y/z", "0-9/10",
        "bytes 0-18446744073709551616/5", ""}) {
    INFO(range);
    files.change = [&](const Request&, Reply& reply) {
      reply = {.code = 206,
               .body = files.bytes,
               .headers = files.headers + "Content-Range: " + range + "\r\n"};
    };
    CHECK(error() != "no error");
  }
  files.change = [](const Request&, Reply& reply) {
    reply.headers += "Content-Encoding: gzip\r\n";
  };
  CHECK_THAT(error(), Contains("another encoding"));
}

TEST_CASE("redirects are followed as far as is safe") {
  FileServer files;
  std::string target;
  HttpServer redirecting([&](const Request& request) {
    return request.path == "/loop" ? Reply{.code = 302, .headers = "Location: /loop\r\n"}
                                   : Reply{.code = 307, .headers = "Location: " + target + "\r\n"};
  });
  target = files.address().text();
  OpenStore store(Address(redirecting.url() + "/a"), quick_rules());
  CHECK(all_of(store, "") == files.bytes);
  for (const char* const where :
       {"ftp://127.0.0.1/a", "file:///etc/passwd", "gopher://x", "//[", ""}) {
    INFO(where);
    target = where;
    CHECK(error_of([&] { store.facts(""); }) != "no error");
  }
  CHECK_THAT(
      error_of([&] { OpenStore(Address(redirecting.url() + "/loop"), quick_rules()).facts(""); }),
      Contains("more than 5 times"));
}

TEST_CASE("plain http is for this machine only, and has no secrets to leak") {
  for (const char* const text : {"http://example.org/a", "http://10.0.0.1/a"}) {
    CHECK_THAT(error_of([&] { OpenStore store{Address(text)}; }),
               Contains("anybody on the way can change") && Contains("write https://"));
  }
  for (const char* const text : {"https:host/a", "https://h/a%2", "https://h/%2e%2e/a",
                                 "https://h/a%2F%2e%2e%2Fb", "https://h/a%00b", "https://[/a"}) {
    INFO(text);
    CHECK(error_of([&] { OpenStore store{Address(text)}; }) != "no error");
  }
}

TEST_CASE("faults of a server are tried again, and named where they stay") {
  FileServer files;
  OpenStore store(files.address(), quick_rules());
  for (const auto& [kind, status] : {std::pair(Fault::reset, 200),
                                    {Fault::closed, 200},
                                    {Fault::half, 200},
                                    {Fault::garbage, 200},
                                    {Fault::none, 500},
                                    {Fault::none, 503},
                                    {Fault::none, 429}}) {
    INFO(static_cast<int>(kind) << " " << status);
    int count = 0;
    files.change = [&, fault = kind, code = status](const Request&, Reply& reply) {
      if (count++ % 2 == 0) {
        reply.fault = fault;
        reply.code = code == 200 ? reply.code : code;
      }
    };
    CHECK(all_of(store, "") == files.bytes);
    files.change = [&, fault = kind, code = status](const Request& request, Reply& reply) {
      if (request.method != "HEAD") {
        reply.fault = fault;
        reply.code = code == 200 ? reply.code : code;
        reply.body.resize(fault == Fault::half ? reply.body.size() : 10);
      }
    };
    if (kind != Fault::half) {  // halves of what is left arrive in the end
      CHECK_THAT(error_of([&] { all_of(store, ""); }), Contains("it was tried 3 times"));
    }
  }
  files.change = [](const Request&, Reply& reply) { reply.fault = Fault::never; };
  CHECK_THAT(error_of([&] { store.facts(""); }), Contains("it was tried 3 times"));
  CHECK_THAT(error_of([&] { OpenStore(Address("http://127.0.0.1:1/a"), quick_rules()).facts(""); }),
             Contains("it was tried 3 times"));
}

TEST_CASE("a server whose certificate nobody vouches for is refused") {
  // A port that speaks no TLS is a temporary failure, and no bytes are taken from it.
  FileServer files;
  const std::string address = "https" + files.address().text().substr(4);
  CHECK(error_of([&] { OpenStore(Address(address), quick_rules()).facts(""); }) != "no error");
}

TEST_CASE("a repository of the hub has files of one commit, with hashes") {
  HubEnvironment env;
  HubState& hub = env.hub.state;
  OpenStore store(Address("hf:owner/name"), quick_rules());
  CHECK(store.fixed_revision() == hub.commit);
  CHECK(store.text("config.json", 100) == "hello\n");
  CHECK(store.facts("config.json").git_blob == hub.files.at("config.json").git_hash);
  CHECK(store.facts("sub/model.safetensors").sha256 ==
        sha256_of(hub.files.at("sub/model.safetensors").bytes));
  CHECK(all_of(store, "sub/model.safetensors") == hub.files.at("sub/model.safetensors").bytes);
  for (const std::size_t page : {1000UL, 1UL, 2UL}) {
    hub.page = page;
    const auto listed = store.list();
    REQUIRE(listed.size() == 3);
    CHECK(listed[2].name == "sub/model.safetensors");
    CHECK(listed[2].facts == store.facts(listed[2].name));
    CHECK(listed[0].facts == store.facts("config.json"));
  }
  CHECK(OpenStore(Address("hf:owner/name@main/sub"), quick_rules()).list().size() == 2);
  CHECK(OpenStore(Address("hf://owner/name/config.json"), quick_rules()).text("", 10) == "hello\n");
  hub.path_prefix = "/api/datasets/owner/name";
  CHECK(OpenStore(Address("hf:datasets/owner/name"), quick_rules()).list().size() == 3);
}

TEST_CASE("the hub's token goes to the hub and nowhere else") {
  HubEnvironment env;
  HubState& hub = env.hub.state;
  hub.token = "hf_secret";
  const auto open = [] {
    OpenStore store(Address("hf:owner/name"), quick_rules());
    return all_of(store, "sub/model.safetensors");
  };
  CHECK_THAT(error_of(open),
             Contains("no public repository of this name") && Contains("set HF_TOKEN"));
  setenv("HF_TOKEN", "hf_expired", 1);
  const std::string error = error_of(open);
  CHECK_THAT(error, Contains("whether the token is valid") && !Contains("hf_expired"));
  unsetenv("HF_TOKEN");
  env.write("token", "hf_secret\n");
  CHECK(open() == hub.files.at("sub/model.safetensors").bytes);
  CHECK(!hub.with_token.empty());
  CHECK(std::ranges::none_of(hub.with_token,
                             [](const std::string& path) { return path.starts_with("/cdn/"); }));
  setenv("HF_TOKEN", "two\nlines", 1);
  CHECK_THAT(error_of(open), Contains("characters that no token has") && !Contains("two"));
  setenv("HF_TOKEN", "hf_secret", 1);
  setenv("HF_ENDPOINT", "http://example.org", 1);
  CHECK_THAT(error_of(open), Contains("HF_ENDPOINT is not https"));
  unsetenv("HF_TOKEN");
}

TEST_CASE("what the hub does not have, and wrong hubs, are errors") {
  HubEnvironment env;
  HubState& hub = env.hub.state;
  OpenStore store(Address("hf:owner/name"), quick_rules());
  CHECK_THAT(error_of([&] { store.facts("x"); }),
             Contains("hf:owner/name/x: the repository has no file of this name"));
  CHECK_THAT(error_of([&] { OpenStore(Address("hf:owner/name@v2"), quick_rules()).list(); }),
             Contains("no revision 'v2'"));
  for (const char* const text :
       {"hf:name", "hf:owner/", "hf:owner/na me", "hf:owner/name@", "hf:owner/n%61me",
        "hf:owner/name@refs/pr", "hf:owner/name@a%zz", "hf:datasets/name"}) {
    INFO(text);
    CHECK(error_of([&] { OpenStore store{Address(text)}; }) != "no error");
  }
  const auto with = [&](const auto& change) {
    hub.fault = change;
    const std::string error = error_of([&] {
      OpenStore again(Address("hf:owner/name"), quick_rules());
      again.list();
      again.facts("config.json");
    });
    hub.fault = [](const Request&, Reply&) {};
    return error;
  };
  CHECK_THAT(with([](const Request&, Reply& reply) { reply.body = "<html>"; }),
             Contains("not what it is documented to be"));
  CHECK(with([](const Request&, Reply& reply) { reply.body = "{\"sha\": \"../..\"}"; }) !=
        "no error");
  CHECK(with([](const Request& request, Reply& reply) {
          if (request.path.find("/tree/") != std::string::npos) {
            reply.headers += "Link: <http://127.0.0.1:1/x>; rel=\"next\"\r\n";
          }
        }).find("continues at another server") != std::string::npos);
  CHECK_THAT(with([](const Request& request, Reply& reply) {
               if (request.path.find("/resolve/") != std::string::npos) {
                 reply.headers = "ETag: \"x\"\r\n";
               }
             }),
             Contains("no hash of it"));
  CHECK_THAT(with([](const Request& request, Reply& reply) {
               if (request.path.find("/resolve/") != std::string::npos) {
                 reply.headers += "X-Repo-Commit: " + std::string(40, 'c') + "\r\n";
               }
             }),
             Contains("another commit"));
  CHECK_THAT(with([](const Request&, Reply& reply) {
               reply = {.code = 403, .headers = "X-Error-Code: GatedRepo\r\n"};
             }),
             Contains("accept its conditions"));
}
