// Requests over HTTP, for the plugins that make some: one place for libcurl, with the limits, the
// redirects, the checks of servers and the classes of failures. A plugin compiles http_client.cpp
// as one of its sources. Include it after the imports of tessera.base and tessera.stores.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::http {

/// What a server has answered.
struct HttpAnswer {
  long code = 0;
  /// By their names in small letters; of several of a name, the last one.
  std::map<std::string, std::string> headers = {};
  std::string body = {};  // unless HttpRequest::take got it
  double after = 0;       // seconds of Retry-After
  /// Where a redirect leads that was not followed, with its secrets; empty: none.
  std::string location = {};

  /// Empty where it is not there.
  std::string header(const std::string& name) const;
};

/// Which redirects are followed, at most five of them.
enum class Redirects : std::uint8_t {
  none,
  same_server,  // of scheme, host and port
  any,          // to others without what says who asks, and never from https to http
};

/// Signs a request as AWS does it (version 4).
struct AwsSignature {
  std::string provider = {};  // as CURLOPT_AWS_SIGV4 has it: "aws:amz:us-east-1:s3"
  std::string key = {};
  std::string secret = {};
};

/// A user with a password, for servers that ask for that (Basic).
struct HttpAccount {
  std::string user = {};  // empty: none
  std::string password = {};
};

struct HttpRequest {
  std::string method = "GET";
  std::string url = {};
  /// Lines "Name: value"; they may have no secret.
  std::vector<std::string> headers = {};
  /// The same, but for who asks: not sent to another server, and not shown.
  std::vector<std::string> secret_headers = {};
  std::optional<AwsSignature> signature = {};
  HttpAccount password = {};
  std::span<const std::byte> body = {};
  bool has_body = false;  // also of no bytes
  Redirects redirects = Redirects::none;
  /// Of the whole request; 0: what RequestLimits says.
  double all_seconds = 0;
  /// Of an answer that is kept; a larger one is an error.
  std::size_t largest_answer = std::size_t{8} << 20;
  /// Called once, before the first byte of an answer of 200 to 299, with its code and headers. What
  /// it throws ends the request.
  std::function<void(const HttpAnswer& answer)> begin = {};
  /// Gets the bytes of an answer of 200 to 299. Empty: they are kept.
  std::function<void(std::span<const std::byte> bytes)> take = {};
};

/// Makes requests, from several threads at the same time. Servers of https must prove who they are.
class HttpClient {
 public:
  HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  /// The answer, whatever its code is. Throws StoreError (temporary, cancelled, wrong_answer,
  /// no_rights for a server that cannot prove who it is) without a secret, and what begin and take
  /// throw.
  HttpAnswer send(const HttpRequest& request, const stores::RequestLimits& limits);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws StoreError for an answer that is none of 200 to 299.
void check_answer(const HttpAnswer& answer);
[[noreturn]] void fail_for(const HttpAnswer& answer);

/// A URL without what may be a secret.
std::string shown_url(const std::string& url);

/// A text as a part of a URL's path or query; '/' stays where `slashes`.
std::string escaped(std::string_view text, bool slashes);
/// The other way round; nothing: a '%' begins no byte.
std::optional<std::string> unescaped(std::string_view text);

/// "https", "host", 443 of a URL; nothing: it is none of http or https, or has a user.
struct HttpServerName {
  std::string scheme = {};
  std::string host = {};
  std::string port = {};
  /// Of this machine: 127.0.0.1, [::1] or localhost.
  bool is_loopback() const;
  bool operator==(const HttpServerName& other) const = default;
};
std::optional<HttpServerName> server_of(const std::string& url);

/// What a text has where it is a URL with a host.
struct AddressParts {
  std::string scheme = {};  // empty: it is none
  bool has_user = false;    // or a password
  bool has_query = false;   // or a fragment
};
AddressParts parts_of(const std::string& url);

}  // namespace tessera::http
