// Files of servers by HTTPS. They are only read, and there are no lists.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

import tessera.base;
import tessera.stores;

#include "web_stores.hpp"

namespace web_stores {
namespace {

using namespace tessera;
using namespace tessera::http;
using namespace tessera::stores;

/// What tells one content from another: a strong ETag, else the time of the last change.
std::string version_of(const HttpAnswer& answer) {
  std::string tag = answer.header("etag");
  if (tag.starts_with('"')) {
    return tag;
  }
  const std::string modified = answer.header("last-modified");
  return modified.empty() ? "" : "modified " + modified;
}

class HttpsStore final : public StoreReader {
 public:
  explicit HttpsStore(std::string server) : server_(std::move(server)) {}

  ObjectFacts facts(const std::string& name, const RequestLimits& limits) override {
    HttpRequest request = request_for(name);
    request.method = "HEAD";
    HttpAnswer answer = client_.send(request, limits);
    std::optional<std::uint64_t> size = range_of(answer).size;
    constexpr long no_such_method = 405;
    constexpr long not_built = 501;
    if (answer.code == no_such_method || answer.code == not_built ||
        (answer.code == 200 && !size)) {
      // A server that answers no HEAD, or without a length: one byte has both, too.
      answer = first_byte(name, limits);
      size = range_of(answer).size;
    }
    check_answer(answer);
    if (!size) {
      fail_store(StoreFailure::wrong_answer, "the server does not say how large it is");
    }
    return {.size = *size, .version = version_of(answer)};
  }

  void read(const std::string& name, const ObjectFacts& facts, ByteRange range,
            const TakeBytes& take, const RequestLimits& limits) override {
    const auto check = [&](const HttpAnswer& answer) {
      if (version_of(answer) != facts.version) {
        fail_store(StoreFailure::changed, "it has changed on the server");
      }
    };
    get_range(client_, request_for(name), facts, range, check, take, limits);
  }

 private:
  struct HeaderAnswer {
    HttpAnswer answer;
  };

  HttpRequest request_for(const std::string& name) const {
    if (name.empty()) {
      fail_store(StoreFailure::wrong_address, "it names a server and no file",
                 "write https://HOST/PATH");
    }
    HttpRequest request;
    request.url = server_ + "/" + escaped(name, true);
    request.redirects = Redirects::any;
    return request;
  }
  HttpAnswer first_byte(const std::string& name, const RequestLimits& limits) {
    HttpRequest request = request_for(name);
    request.headers.emplace_back("Range: bytes=0-0");
    request.begin = [](const HttpAnswer& answer) { throw HeaderAnswer{answer}; };
    try {
      return client_.send(request, limits);
    } catch (const HeaderAnswer& has) {
      return has.answer;
    }
  }

  std::string server_;
  HttpClient client_;
};

class HttpsScheme final : public StoreScheme {
 public:
  StorePlace open(const Address& address) const override {
    const std::string& rest = address.rest();
    const std::size_t slash = rest.find('/');
    const std::string server = address.scheme() + "://" + rest.substr(0, slash);
    const std::optional<HttpServerName> named = server_of(server);
    if (!named || address.text().find("://") == std::string::npos) {
      fail_store(StoreFailure::wrong_address, "it names no server (expected https://HOST/PATH)");
    }
    if (named->scheme == "http" && !named->is_loopback()) {
      fail_store(StoreFailure::wrong_address,
                 "anybody on the way can change what http sends (it is for 127.0.0.1 only)",
                 "write https://");
    }
    const std::optional<std::string> path =
        unescaped(slash == std::string::npos ? "" : rest.substr(slash + 1));
    if (!path) {
      fail_store(StoreFailure::wrong_address, "a '%' in it is not followed by two digits");
    }
    return {std::make_unique<HttpsStore>(server), *path};
  }
  std::string how_to_get_rights() const override {
    return "name a file that needs no password, as none is sent; certificates of servers are "
           "those of the system, or of SSL_CERT_FILE";
  }
};

}  // namespace

std::unique_ptr<StoreScheme> make_https_scheme() { return std::make_unique<HttpsScheme>(); }

}  // namespace web_stores
