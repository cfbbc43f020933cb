#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

import tessera.base;
import tessera.options;
import tessera.sinks;

#include "http_client.hpp"

namespace http_sinks {
namespace {

using namespace tessera;

constexpr long connect_milliseconds = 3000;
constexpr long request_milliseconds = 5000;
constexpr std::size_t largest_answer = std::size_t{1} << 20;
constexpr double longest_pause = 60;  // that a server may ask for

template <auto Free>
struct FreeCall {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Url = std::unique_ptr<CURLU, FreeCall<curl_url_cleanup>>;
using Text = std::unique_ptr<char, FreeCall<curl_free>>;

/// A part of the URL; empty where it has none.
std::string part_of(const Url& url, CURLUPart part) {
  char* text = nullptr;
  const bool there = curl_url_get(url.get(), part, &text, 0) == CURLUE_OK;
  const Text freed(text);
  return there && text != nullptr ? text : "";
}

std::size_t take_body(const char* bytes, std::size_t size, std::size_t count, void* into) {
  auto& body = *static_cast<std::string*>(into);
  if (body.size() + size * count > largest_answer) {
    return 0;  // the request fails
  }
  body.append(bytes, size * count);
  return size * count;
}

bool may_pass(long code) {
  return code == 408 || code == 429 || (code >= 500 && code != 501 && code != 505);
}
bool may_pass(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:  // of an answer that is not HTTP
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_AGAIN:
    case CURLE_WEIRD_SERVER_REPLY:
      return true;
    default:
      return false;
  }
}

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

void start_curl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
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
  const Url parsed(curl_url());
  const bool right = server.url.size() < longest_url &&
                     curl_url_set(parsed.get(), CURLUPART_URL, server.url.c_str(), 0) == CURLUE_OK;
  const std::string scheme = right ? part_of(parsed, CURLUPART_SCHEME) : "";
  if (scheme != "http" && scheme != "https") {
    options.refuse("url must begin with http:// or https:// and a host");
  }
  if (!part_of(parsed, CURLUPART_USER).empty() || !part_of(parsed, CURLUPART_PASSWORD).empty()) {
    options.refuse(
        "url must have no user and no password, as a config is shown and stored: use user "
        "and token_env or token_file");
  }
  if (!part_of(parsed, CURLUPART_QUERY).empty() || !part_of(parsed, CURLUPART_FRAGMENT).empty()) {
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

struct HttpClient::State {
  std::string thing;
  ServerOptions options;
  std::string token;
  std::unique_ptr<CURL, FreeCall<curl_easy_cleanup>> curl;
  std::unique_ptr<curl_slist, FreeCall<curl_slist_free_all>> headers;
  std::array<char, CURL_ERROR_SIZE> error{};

  template <class T>
  void set(CURLoption option, T value) {
    if (curl_easy_setopt(curl.get(), option, value) != CURLE_OK) {
      fail({.thing = thing,
            .wrong = fmt::format("libcurl refuses option {}", static_cast<int>(option))});
    }
  }
  void add_header(const std::string& header) {
    curl_slist* const longer = curl_slist_append(headers.get(), header.c_str());
    static_cast<void>(headers.release());
    headers.reset(longer);
  }
  /// What a server has sent, as an error shows it.
  std::string safe(std::string text) const {
    for (std::size_t at = 0; !token.empty() && (at = text.find(token)) != std::string::npos;) {
      text.replace(at, token.size(), "***");
    }
    return sinks::cut_text(text, 300);
  }
};

HttpClient::HttpClient(std::string thing, ServerOptions options)
    : state_(std::make_unique<State>()) {
  start_curl();
  State& s = *state_;
  s.thing = std::move(thing);
  s.options = std::move(options);
  s.token = read_token(s.thing, s.options);
  s.curl.reset(curl_easy_init());
  if (!s.curl) {
    fail({.thing = s.thing, .wrong = "libcurl cannot begin"});
  }
  s.add_header("Content-Type: application/json");
  s.add_header("Expect:");  // no further turn before a large body
  if (!s.token.empty() && s.options.user.empty()) {
    s.add_header("Authorization: Bearer " + s.token);
  }
}

HttpClient::~HttpClient() = default;

Answer HttpClient::request(const std::string& path, const std::optional<std::string>& json,
                           long expected) {
  State& s = *state_;
  Answer answer;
  const std::string url = s.options.url + path;
  curl_easy_reset(s.curl.get());  // connections stay
  s.set(CURLOPT_URL, url.c_str());
  s.set(CURLOPT_PROTOCOLS_STR, "http,https");
  s.set(CURLOPT_FOLLOWLOCATION, 0L);
  s.set(CURLOPT_NOSIGNAL, 1L);
  s.set(CURLOPT_CONNECTTIMEOUT_MS, connect_milliseconds);
  s.set(CURLOPT_TIMEOUT_MS, request_milliseconds);
  s.set(CURLOPT_HTTPHEADER, s.headers.get());
  s.set(CURLOPT_USERAGENT, "tessera");
  s.set(CURLOPT_WRITEFUNCTION, take_body);
  s.set(CURLOPT_WRITEDATA, static_cast<void*>(&answer.body));
  s.error = {};
  s.set(CURLOPT_ERRORBUFFER, s.error.data());
  if (!s.options.user.empty()) {
    s.set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    s.set(CURLOPT_USERNAME, s.options.user.c_str());
    s.set(CURLOPT_PASSWORD, s.token.c_str());
  }
  if (json) {
    s.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json->size()));
    s.set(CURLOPT_POSTFIELDS, json->c_str());
  }
  const CURLcode code = curl_easy_perform(s.curl.get());
  if (code != CURLE_OK) {
    const std::string why = s.error[0] != '\0' ? s.error.data() : curl_easy_strerror(code);
    ErrorFields fields{.thing = s.thing, .wrong = fmt::format("{}: {}", url, s.safe(why))};
    if (may_pass(code)) {
      throw sinks::UnavailableError(std::move(fields));
    }
    fail(std::move(fields));
  }
  curl_easy_getinfo(s.curl.get(), CURLINFO_RESPONSE_CODE, &answer.code);
  if ((answer.code >= 200 && answer.code < 300) || answer.code == expected) {
    return answer;
  }
  char* place = nullptr;
  curl_easy_getinfo(s.curl.get(), CURLINFO_REDIRECT_URL, &place);
  ErrorFields fields{
      .thing = s.thing,
      .wrong = place != nullptr
                   ? fmt::format("{} answers {} and names {}, which is not followed", url,
                                 answer.code, s.safe(place))
                   : fmt::format("{} answers {}: {}", url, answer.code, s.safe(answer.body)),
      .advice = place != nullptr ? "set that url" : ""};
  if (may_pass(answer.code)) {
    curl_off_t after = 0;
    curl_easy_getinfo(s.curl.get(), CURLINFO_RETRY_AFTER, &after);
    throw sinks::UnavailableError(std::move(fields),
                                  std::clamp(static_cast<double>(after), 0.0, longest_pause));
  }
  fail(std::move(fields));
}

std::string HttpClient::escaped(const std::string& text) const {
  const Text escaped(
      curl_easy_escape(state_->curl.get(), text.data(), static_cast<int>(text.size())));
  return escaped ? escaped.get() : "";
}

}  // namespace http_sinks
