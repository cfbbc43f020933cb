// What the sinks of this plugin share: requests to one server, within limits of time and size.
// Included after the imports of tessera.base, tessera.options, tessera.sinks and tessera.stores.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "../http/http_client.hpp"

namespace http_sinks {

/// How a server is reached; secrets are named, not held.
struct ServerOptions {
  std::string url = {};
  std::string token_env = {};
  std::string token_file = {};
  std::string user = {};  // with it, the token is a password
};

/// Reads the address, token_env, token_file and user. Errors (input): no URL of HTTP, one with a
/// password.
ServerOptions read_server_options(tessera::PluginOptions& options, const std::string& url);

/// Error (input): the token cannot be read.
void check_token(const std::string& thing, const ServerOptions& options);

/// What a server has answered.
struct SinkAnswer {
  long code = 0;
  std::string body = {};
};

/// Sends to one server. Redirects are not followed, and answers are bounded.
class SinkServer {
 public:
  SinkServer(std::string thing, const ServerOptions& options);

  /// The answer to JSON that is sent, or without it to a request to get something: one of 200 to
  /// 299, or `expected`. Throws UnavailableError for what may pass (no connection, no time, 408,
  /// 429, 5xx), Error for the rest, without the token.
  SinkAnswer request(const std::string& path, const std::optional<std::string>& json,
                     long expected = 200);

 private:
  [[noreturn]] void fail_for(const std::string& url,
                             const tessera::stores::StoreError& error) const;

  std::string thing_;
  std::string url_;
  std::string user_;
  std::string token_;
  tessera::http::HttpClient client_;
};

std::unique_ptr<tessera::sinks::Sink> make_otlp_sink(tessera::PluginOptions& options);
std::unique_ptr<tessera::sinks::Sink> make_mlflow_sink(tessera::PluginOptions& options);

}  // namespace http_sinks
