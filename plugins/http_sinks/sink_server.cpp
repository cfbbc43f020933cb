#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

import tessera.base;
import tessera.options;
import tessera.sinks;
import tessera.stores;

#include "sink_server.hpp"

namespace http_sinks {
namespace {

using namespace tessera;

constexpr double connect_seconds = 3;
constexpr double request_seconds = 5;
constexpr std::size_t largest_answer = std::size_t{1} << 20;
constexpr double longest_pause = 60;  // that a server may ask for

std::string read_token(const std::string& thing, const ServerOptions& options) {
  std::string token;
  if (!options.token_env.empty()) {
    token = environment_variable(options.token_env.c_str()).value_or("");
    if (token.empty()) {
      fail_input({.thing = thing,
                  .wrong = fmt::format("token_env names {}, which is not set", options.token_env),
                  .advice = "set it in the environment of the run"});
    }
  } else if (!options.token_file.empty()) {
    token = sinks::read_secret(thing + ": token_file", options.token_file);
  }
  // A line's end would begin a header of its own.
  if (std::ranges::any_of(token, [](char c) { return c < 0x20 || c > 0x7e; })) {
    fail_input({.thing = thing, .wrong = "the token has characters that no header may have"});
  }
  return token;
}

}  // namespace

ServerOptions read_server_options(PluginOptions& options, const std::string& url) {
  ServerOptions server;
  server.url = options.text("url", url);
  options.document("url", "The server, with the beginning of its paths.");
  server.token_env = options.text("token_env", "");
  options.document("token_env", "The variable of the environment that has the token.");
  server.token_file = options.text("token_file", "");
  options.document("token_file", "A file that has it, which nobody else may read.");
  server.user = options.text("user", "");
  options.document("user", "With a user, the token is the password; else it is a bearer token.");
  constexpr std::size_t longest_url = 2048;
  const http::AddressParts parts = http::parts_of(server.url);
  if (server.url.size() >= longest_url || (parts.scheme != "http" && parts.scheme != "https")) {
    options.refuse("url must begin with http:// or https:// and a host");
  }
  if (parts.has_user) {
    options.refuse(
        "url must have no user and no password, as a config is shown and stored: use user "
        "and token_env or token_file");
  }
  if (parts.has_query) {
    options.refuse("url must have no '?' and no '#'");
  }
  if (!server.token_env.empty() && !server.token_file.empty()) {
    options.refuse("one of token_env and token_file is enough");
  }
  if (!server.user.empty() && server.token_env.empty() && server.token_file.empty()) {
    options.refuse("user needs token_env or token_file");
  }
  while (server.url.ends_with('/')) {
    server.url.pop_back();
  }
  return server;
}

void check_token(const std::string& thing, const ServerOptions& options) {
  static_cast<void>(read_token(thing, options));
}

SinkServer::SinkServer(std::string thing, const ServerOptions& options)
    : thing_(std::move(thing)),
      url_(options.url),
      user_(options.user),
      token_(read_token(thing_, options)) {}

void SinkServer::fail_for(const std::string& url, const stores::StoreError& error) const {
  ErrorFields fields{.thing = thing_,
                     .wrong = fmt::format("{}: {}", url, error.fields().wrong),
                     .advice = error.fields().advice};
  if (error.failure() == stores::StoreFailure::temporary) {
    throw sinks::UnavailableError(std::move(fields), std::clamp(error.after(), 0.0, longest_pause));
  }
  fail(std::move(fields));
}

SinkAnswer SinkServer::request(const std::string& path, const std::optional<std::string>& json,
                               long expected) {
  http::HttpRequest request;
  request.method = json ? "POST" : "GET";
  request.url = url_ + path;
  request.headers = {"Content-Type: application/json"};
  request.largest_answer = largest_answer;
  if (!token_.empty() && user_.empty()) {
    request.secret_headers = {"Authorization: Bearer " + token_};
  } else if (!token_.empty()) {
    request.password = {.user = user_, .password = token_};
  }
  if (json) {
    request.has_body = true;
    request.body = std::as_bytes(std::span(*json));
  }
  request.all_seconds = request_seconds;
  try {
    http::HttpAnswer answer = client_.send(
        request, {.connect_seconds = connect_seconds, .stalled_seconds = request_seconds});
    if (!answer.location.empty()) {
      fail({.thing = thing_,
            .wrong = fmt::format("{} answers {} and names {}, which is not followed", request.url,
                                 answer.code, http::shown_url(answer.location)),
            .advice = "set that url"});
    }
    if (answer.code != expected) {
      http::check_answer(answer);
    }
    return {.code = answer.code, .body = std::move(answer.body)};
  } catch (const stores::StoreError& error) {
    fail_for(request.url, error);
  }
}

}  // namespace http_sinks
