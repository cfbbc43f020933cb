// Servers that prove who they are, and others, by certificates that the test makes.
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "hub_server.hpp"
#include "tls_server.hpp"

import tessera.base;
import tessera.stores;

using namespace tessera;
using namespace tessera::stores;
using namespace tessera::testing;
using Catch::Contains;

namespace {

const Certificates& certificates() {
  static const Certificates made;
  return made;
}

/// The authority that clients trust, by one of the usual variables; none without a name.
class TrustedAuthority {
 public:
  explicit TrustedAuthority(const std::string& name, const char* variable = "SSL_CERT_FILE")
      : variable_(variable) {
    ::unsetenv("CURL_CA_BUNDLE");
    ::unsetenv("SSL_CERT_FILE");
    if (!name.empty()) {
      ::setenv(variable, (certificates() / (name + ".pem")).c_str(), 1);
    }
  }
  TrustedAuthority(const TrustedAuthority&) = delete;
  TrustedAuthority& operator=(const TrustedAuthority&) = delete;
  ~TrustedAuthority() { ::unsetenv(variable_); }

 private:
  const char* variable_;
};

/// All tries, without long pauses.
StoreRules quick_rules() {
  return {.retries = {.tries = 8, .first_pause = 0.001, .longest_pause = 0.002}};
}

std::string all_of(OpenStore& store, const std::string& name) {
  const ObjectFacts facts = store.facts(name);
  std::string text(facts.size, '\0');
  store.read(name, facts, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// A server with the file /a, which is 50,000 bytes.
struct SecureFiles {
  explicit SecureFiles(const std::string& certificate)
      : server(certificates(), certificate, [this](const Request& request) {
          return redirect ? Reply{.code = 302, .headers = "Location: " + *redirect + "\r\n"}
                          : ranged(request, bytes, "ETag: \"one\"\r\n");
        }) {}
  std::string bytes = random_bytes(50000, 3);
  std::optional<std::string> redirect;
  TlsServer server;
  Address address() const { return Address(server.url() + "/a"); }
};

bool says_who(const std::vector<Request>& requests) {
  for (const Request& request : requests) {
    if (request.head.find("uthorization:") != std::string::npos ||
        request.head.find("secret") != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("a server whose authority a variable names is read") {
  for (const char* const variable : {"SSL_CERT_FILE", "CURL_CA_BUNDLE"}) {
    INFO(variable);
    const TrustedAuthority trusted("ca", variable);
    SecureFiles files("good");
    OpenStore store(files.address(), quick_rules());
    CHECK(all_of(store, "") == files.bytes);
  }
}

TEST_CASE("a server that does not prove who it is gets one try, no request, and a clear error") {
  struct Case {
    std::string certificate;
    std::string trusted;
    std::string reason;
  };
  for (const Case& wrong : {Case{"expired", "ca", "expired"},
                            {"other_host", "ca", "127.0.0.1"},
                            {"alone", "ca", "self-signed certificate"},
                            {"good", "other", "certificate"},
                            {"good", "", "certificate"},
                            {"good", "nothing", "certificate"}}) {
    INFO(wrong.certificate << " " << wrong.trusted);
    const TrustedAuthority trusted(wrong.trusted);
    const SecureFiles files(wrong.certificate);
    OpenStore store(files.address(), quick_rules());
    const std::string error = error_of([&] { store.facts(""); });
    CHECK_THAT(error, Contains(files.address().text()) && Contains(wrong.reason) &&
                          Contains("SSL_CERT_FILE") && !Contains("it was tried"));
    CHECK(store.counts().requests == 1);
    CHECK(files.server.requests().empty());
  }
}

TEST_CASE("the hub's token is sent to no hub that does not prove who it is") {
  const TrustedAuthority trusted("ca");
  const Folder home;
  ::setenv("HF_HOME", home.path().c_str(), 1);
  ::setenv("HF_TOKEN", "hf_secret", 1);
  for (const char* const certificate : {"expired", "other_host", "alone"}) {
    const SecureFiles files(certificate);
    ::setenv("HF_ENDPOINT", files.server.url().c_str(), 1);
    OpenStore store(Address("hf:owner/name"), quick_rules());
    const std::string error = error_of([&] { store.list(); });
    CHECK_THAT(error, Contains("certificate") && Contains("SSL_CERT_FILE") &&
                          !Contains("HF_TOKEN") && !Contains("hf_secret"));
    CHECK(files.server.requests().empty());
  }
  ::unsetenv("HF_TOKEN");
  ::unsetenv("HF_ENDPOINT");
}

TEST_CASE("a redirect from https to http, and to a server without a proof, is refused") {
  const TrustedAuthority trusted("ca");
  SecureFiles files("good");
  const SecureFiles false_server("alone");
  HttpServer plain([&](const Request& request) { return ranged(request, files.bytes, ""); });
  const auto error = [&](const std::string& target) {
    files.redirect = target;
    OpenStore store(files.address(), quick_rules());
    const std::string text = error_of([&] { store.facts(""); });
    CHECK(store.counts().requests == 1);
    return text;
  };
  CHECK_THAT(error(plain.url() + "/a?token=secret"),
             Contains("redirects to " + plain.url().substr(0, 16)) && Contains("not https") &&
                 !Contains("secret"));
  CHECK(plain.requests().empty());
  CHECK_THAT(error(false_server.server.url() + "/a"), Contains("certificate"));
  CHECK(false_server.server.requests().empty());
}

TEST_CASE("over TLS the hub's token goes to the hub and nowhere else") {
  const TrustedAuthority trusted("ca");
  const Folder home;
  HubState state;
  state.token = "hf_secret";
  state.files = {{"large", {random_bytes(30000, 4)}}};
  TlsServer cdn(certificates(), "good",
                [&](const Request& request) { return hub_reply(state, request); });
  state.cdn = cdn.url();
  TlsServer hub(certificates(), "good",
                [&](const Request& request) { return hub_reply(state, request); });
  ::setenv("HF_HOME", home.path().c_str(), 1);
  ::setenv("HF_ENDPOINT", hub.url().c_str(), 1);
  ::setenv("HF_TOKEN", "hf_secret", 1);
  {
    OpenStore store(Address("hf:owner/name"), quick_rules());
    CHECK(all_of(store, "large") == state.files.at("large").bytes);
  }
  CHECK(says_who(hub.requests()));
  CHECK(!cdn.requests().empty());
  CHECK(!says_who(cdn.requests()));
  // An attacker in the hub's place sends every request elsewhere.
  state.fault = [&](const Request&, Reply& reply) {
    reply = {.code = 307, .headers = "Location: " + cdn.url() + "/cdn/large\r\n"};
  };
  const std::size_t before = cdn.requests().size();
  OpenStore store(Address("hf:owner/name"),
                  {.limits = {.stalled_seconds = 1, .answer_seconds = 1}, .retries = {.tries = 1}});
  CHECK(error_of([&] { store.list(); }) != "no error");
  CHECK(cdn.requests().size() >= before);
  CHECK(!says_who(cdn.requests()));
  ::unsetenv("HF_TOKEN");
  ::unsetenv("HF_ENDPOINT");
}
