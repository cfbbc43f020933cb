#include <curl/curl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.stores;

#include "http_client.hpp"

namespace tessera::http {
namespace {

using stores::RequestLimits;
using stores::StoreError;
using stores::StoreFailure;

constexpr int most_redirects = 5;
constexpr long slowest_bytes = 256;                             // each second
constexpr std::size_t largest_refusal = std::size_t{16} << 10;  // of what a server says about it

template <auto Free>
struct FreeCall {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Handle = std::unique_ptr<CURL, FreeCall<curl_easy_cleanup>>;
using Headers = std::unique_ptr<curl_slist, FreeCall<curl_slist_free_all>>;
using Url = std::unique_ptr<CURLU, FreeCall<curl_url_cleanup>>;
using Text = std::unique_ptr<char, FreeCall<curl_free>>;

/// While it is there, a connection that the other side has closed does not end the process: the
/// TLS library writes without asking for that.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t waiting;
    sigemptyset(&waiting);
    sigpending(&waiting);
    was_waiting_ = sigismember(&waiting, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  ~NoBrokenPipe() {
    const timespec at_once{};
    if (!was_waiting_) {
      sigtimedwait(&pipe_, nullptr, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_waiting_ = false;
};

/// What a server says, as an error shows it: one line of printable characters, at most `most`.
std::string shown_line(std::string_view text, std::size_t most = 200) {
  std::string line(text.substr(0, most));
  std::ranges::replace_if(line, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, ' ');
  return line + (text.size() > most ? "..." : "");
}

std::string part_of(const Url& url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  const bool there = curl_url_get(url.get(), part, &text, flags) == CURLUE_OK;
  const Text freed(text);
  return there && text != nullptr ? text : "";
}

/// Where a redirect from `base` leads. StoreError (wrong_answer): nowhere.
std::string target_of(const std::string& base, const std::string& location) {
  const Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK) {
    throw StoreError(StoreFailure::wrong_answer,
                     {.wrong = "the server redirects to what is no URL of HTTP"});
  }
  return part_of(url, CURLUPART_URL);
}

bool is_redirect(long code) {
  return code == 301 || code == 302 || code == 303 || code == 307 || code == 308;
}
bool is_good(long code) { return code >= 200 && code < 300; }

/// How a failure of the connection is meant.
StoreFailure failure_of(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      return StoreFailure::no_rights;
    case CURLE_UNSUPPORTED_PROTOCOL:  // also of an answer that is not HTTP
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
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SEND_FAIL_REWIND:
      return StoreFailure::temporary;
    default:
      return StoreFailure::wrong_answer;
  }
}

void start_curl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

/// One request to one server.
class Exchange {
 public:
  Exchange(CURL* curl, const HttpRequest& request, const std::string& url,
           const RequestLimits& limits, bool says_who)
      : curl_(curl), request_(request), limits_(limits) {
    curl_easy_reset(curl_);  // connections stay
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(limits.connect_seconds * 1000));
    set(CURLOPT_LOW_SPEED_LIMIT, slowest_bytes);
    set(CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(std::ceil(limits.stalled_seconds))));
    if (request.all_seconds > 0) {
      set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.all_seconds * 1000));
    } else if (!request.take && !request.has_body) {
      set(CURLOPT_TIMEOUT_MS, static_cast<long>(limits.answer_seconds * 1000));
    }
    set(CURLOPT_USERAGENT, "tessera");
    set(CURLOPT_ERRORBUFFER, error_.data());
    set_certificates();
    set_headers(says_who);
    set_method();
    set(CURLOPT_HEADERFUNCTION, take_header);
    set(CURLOPT_HEADERDATA, static_cast<void*>(this));
    set(CURLOPT_WRITEFUNCTION, take_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(this));
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, look);
    set(CURLOPT_XFERINFODATA, static_cast<void*>(this));
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() = default;

  HttpAnswer run() {
    const NoBrokenPipe quiet;
    const CURLcode code = curl_easy_perform(curl_);
    if (thrown_) {
      std::rethrow_exception(thrown_);
    }
    if (code == CURLE_ABORTED_BY_CALLBACK) {
      throw StoreError(StoreFailure::cancelled, {.wrong = "interrupted"});
    }
    read_code();
    if (code != CURLE_OK) {
      const StoreFailure failure = failure_of(code);
      throw StoreError(failure, {.wrong = text_of(code),
                                 .advice = failure == StoreFailure::no_rights
                                               ? "check the address and this machine's clock; "
                                                 "SSL_CERT_FILE names the certificates of an "
                                                 "authority of your own"
                                               : ""});
    }
    if (!is_good(answer_.code)) {
      answer_.body = without_secrets(std::move(answer_.body));  // some servers repeat the request
    } else if (!begun_) {
      begun_ = true;
      if (request_.begin) {
        request_.begin(answer_);
      }
    }
    curl_off_t after = 0;
    curl_easy_getinfo(curl_, CURLINFO_RETRY_AFTER, &after);
    answer_.after = static_cast<double>(std::max<curl_off_t>(after, 0));
    return std::move(answer_);
  }

 private:
  template <class T>
  void set(CURLoption option, T value) {
    if (curl_easy_setopt(curl_, option, value) != CURLE_OK) {
      fail(fmt::format("http: libcurl refuses option {}", static_cast<int>(option)));
    }
  }
  void add_header(const std::string& line) {
    // A line's end would begin a header of its own.
    if (std::ranges::any_of(line, [](char c) { return c == '\r' || c == '\n' || c == '\0'; })) {
      fail("http: a header has the end of a line");
    }
    curl_slist* const longer = curl_slist_append(headers_.get(), line.c_str());
    static_cast<void>(headers_.release());
    headers_.reset(longer);
  }
  void set_certificates() {
    for (const char* variable : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
      if (const std::optional<std::string> file = environment_variable(variable)) {
        set(CURLOPT_CAINFO, file->c_str());
        return;
      }
    }
  }
  void set_headers(bool says_who) {
    if (request_.signature) {  // libcurl 7.88 signs lines that only take a header away
      set(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    } else {
      add_header("Expect:");  // no further turn before a large body
    }
    if (std::ranges::none_of(request_.headers, [](const std::string& line) {
          return line.starts_with("Content-Type:");
        })) {
      add_header("Content-Type:");
    }
    for (const std::string& line : request_.headers) {
      add_header(line);
    }
    if (says_who) {
      for (const std::string& line : request_.secret_headers) {
        add_header(line);
      }
      if (!request_.password.user.empty()) {
        set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
        set(CURLOPT_USERNAME, request_.password.user.c_str());
        set(CURLOPT_PASSWORD, request_.password.password.c_str());
      }
      if (request_.signature) {
        set(CURLOPT_AWS_SIGV4, request_.signature->provider.c_str());
        set(CURLOPT_USERNAME, request_.signature->key.c_str());
        set(CURLOPT_PASSWORD, request_.signature->secret.c_str());
      }
    }
    set(CURLOPT_HTTPHEADER, headers_.get());
  }
  void set_method() {
    if (request_.has_body) {
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
      set(CURLOPT_POSTFIELDS,
          request_.body.empty() ? "" : reinterpret_cast<const char*>(request_.body.data()));
    }
    if (request_.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request_.method != (request_.has_body ? "POST" : "GET")) {
      set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    }
  }

  void read_code() { curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &answer_.code); }

  std::string text_of(CURLcode code) const {
    if (code == CURLE_OPERATION_TIMEDOUT && answer_.code == 0) {
      return "the server did not answer in time";
    }
    std::string text = error_[0] != '\0' ? error_.data() : curl_easy_strerror(code);
    return shown_line(without_secrets(std::move(text)), 300);
  }
  std::string without_secrets(std::string text) const {
    const auto hide = [&](const std::string& secret) {
      for (std::size_t at = 0;
           secret.size() > 3 && (at = text.find(secret)) != std::string::npos;) {
        text.replace(at, secret.size(), "***");
      }
    };
    for (const std::string& line : request_.secret_headers) {
      const std::string_view value = std::string_view(line).substr(line.find(':') + 1);
      hide(std::string(value.substr(value.rfind(' ') + 1)));
    }
    hide(request_.password.password);
    if (request_.signature) {
      hide(request_.signature->secret);
      hide(request_.signature->key);
    }
    return text;
  }

  /// Runs what may throw within a call of libcurl.
  template <class Body>
  std::size_t guarded(std::size_t bytes, const Body& body) {
    try {
      body();
      return bytes;
    } catch (...) {
      thrown_ = std::current_exception();
      return bytes == 0 ? 1 : 0;  // another number ends the request
    }
  }

  void add_answer_header(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // of the last answer only: 100 may come before it
      answer_.headers.clear();
      return;
    }
    while (line.ends_with('\n') || line.ends_with('\r') || line.ends_with(' ')) {
      line.remove_suffix(1);
    }
    const std::size_t colon = line.find(':');
    constexpr std::size_t most_headers = 200;
    if (colon == std::string_view::npos || answer_.headers.size() >= most_headers) {
      return;
    }
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    line.remove_prefix(colon + 1);
    while (line.starts_with(' ')) {
      line.remove_prefix(1);
    }
    answer_.headers[name] = line;
  }

  void add_body(std::span<const std::byte> bytes) {
    read_code();
    if (!is_good(answer_.code)) {
      const std::size_t room = largest_refusal - std::min(largest_refusal, answer_.body.size());
      answer_.body.append(reinterpret_cast<const char*>(bytes.data()),
                          std::min(room, bytes.size()));
      return;
    }
    if (!begun_) {
      begun_ = true;
      if (request_.begin) {
        request_.begin(answer_);
      }
    }
    if (request_.take) {
      request_.take(bytes);
      return;
    }
    if (answer_.body.size() + bytes.size() > request_.largest_answer) {
      throw StoreError(
          StoreFailure::wrong_answer,
          {.wrong = fmt::format("the server's answer is too large (expected at most {})",
                                format_bytes(request_.largest_answer))});
    }
    answer_.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  static std::size_t take_header(const char* bytes, std::size_t size, std::size_t count,
                                 void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    return exchange.guarded(size * count,
                            [&] { exchange.add_answer_header({bytes, size * count}); });
  }
  static std::size_t take_body(const char* bytes, std::size_t size, std::size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    return exchange.guarded(size * count, [&] {
      exchange.add_body({reinterpret_cast<const std::byte*>(bytes), size * count});
    });
  }
  static int look(void* self, curl_off_t /*to_get*/, curl_off_t /*got*/, curl_off_t /*to_send*/,
                  curl_off_t /*sent*/) {
    auto& exchange = *static_cast<Exchange*>(self);
    bool cancelled = false;
    return exchange.guarded(
               0,
               [&] { cancelled = exchange.limits_.cancelled && exchange.limits_.cancelled(); }) !=
                       0 ||
                   cancelled
               ? 1
               : 0;
  }

  CURL* curl_;
  const HttpRequest& request_;
  const RequestLimits& limits_;
  Headers headers_;
  HttpAnswer answer_;
  bool begun_ = false;
  std::exception_ptr thrown_;
  std::array<char, CURL_ERROR_SIZE> error_{};
};

}  // namespace

std::string shown_url(const std::string& text) {
  const std::optional<HttpServerName> server = server_of(text);
  const Url url(curl_url());
  if (!server || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return "a URL that cannot be read";
  }
  return shown_line(fmt::format("{}://{}{}", server->scheme, part_of(url, CURLUPART_HOST),
                                part_of(url, CURLUPART_PATH)));
}

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found != headers.end() ? found->second : "";
}

/// Handles that no thread uses now, with their connections.
struct HttpClient::State {
  std::mutex mutex;
  std::vector<Handle> free;
  pid_t owner = getpid();

  Handle take() {
    const std::lock_guard lock(mutex);
    if (owner != getpid()) {  // the connections are the parent's, which goes on using them
      for (Handle& handle : free) {
        static_cast<void>(handle.release());
      }
      free.clear();
      owner = getpid();
    }
    if (!free.empty()) {
      Handle handle = std::move(free.back());
      free.pop_back();
      return handle;
    }
    Handle handle(curl_easy_init());
    if (!handle) {
      fail("http: libcurl cannot begin");
    }
    return handle;
  }
  void give_back(Handle handle) {
    const std::lock_guard lock(mutex);
    free.push_back(std::move(handle));
  }
};

HttpClient::HttpClient() : state_(std::make_unique<State>()) { start_curl(); }
HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::send(const HttpRequest& request, const RequestLimits& limits) {
  const std::optional<HttpServerName> first = server_of(request.url);
  if (!first) {
    throw StoreError(StoreFailure::wrong_address,
                     {.wrong = "there is no server of this name (expected https://HOST...)"});
  }
  std::string url = request.url;
  std::optional<HttpServerName> server = first;
  for (int redirects = 0;; ++redirects) {
    Handle handle = state_->take();
    HttpAnswer answer = Exchange(handle.get(), request, url, limits, *server == *first).run();
    state_->give_back(std::move(handle));
    if (!is_redirect(answer.code)) {
      return answer;
    }
    answer.location = target_of(url, answer.header("location"));
    const std::optional<HttpServerName> next = server_of(answer.location);
    if (!next || (next->scheme == "http" && server->scheme == "https")) {
      throw StoreError(StoreFailure::wrong_answer,
                       {.wrong = fmt::format("the server redirects to {}, which is not https",
                                             shown_url(answer.location))});
    }
    if (request.redirects == Redirects::none ||
        (request.redirects == Redirects::same_server && *next != *first)) {
      return answer;
    }
    if (redirects == most_redirects) {
      throw StoreError(
          StoreFailure::wrong_answer,
          {.wrong = fmt::format("the server redirects more than {} times", most_redirects)});
    }
    url = answer.location;
    server = next;
  }
}

void check_answer(const HttpAnswer& answer) {
  if (!is_good(answer.code)) {
    fail_for(answer);
  }
}

void fail_for(const HttpAnswer& answer) {
  const auto failure = [&] {
    switch (answer.code) {
      case 401:
      case 403:
      case 407:
        return StoreFailure::no_rights;
      case 404:
      case 410:
        return StoreFailure::not_there;
      case 409:
      case 412:
      case 416:
        return StoreFailure::changed;
      case 413:
      case 507:
        return StoreFailure::no_space;
      case 408:
      case 425:
      case 429:
        return StoreFailure::temporary;
      default:
        return answer.code >= 500 && answer.code != 501 && answer.code != 505
                   ? StoreFailure::temporary
                   : StoreFailure::wrong_answer;
    }
  }();
  std::string wrong = fmt::format("the server answers {}", answer.code);
  if (!answer.location.empty()) {
    wrong += fmt::format(" and names {}, which is not followed", shown_url(answer.location));
  } else if (!answer.body.empty()) {
    constexpr std::size_t shown_bytes = 300;
    wrong += fmt::format(": {}", shown_line(answer.body, shown_bytes));
  }
  throw StoreError(failure, {.wrong = std::move(wrong)}, answer.after);
}

std::string escaped(std::string_view text, bool slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && slashes);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::optional<std::string> unescaped(std::string_view text) {
  std::string out;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) {
      return std::nullopt;
    }
    out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return out;
}

bool HttpServerName::is_loopback() const {
  return host == "127.0.0.1" || host == "[::1]" || host == "localhost";
}

AddressParts parts_of(const std::string& text) {
  const Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return {};
  }
  const auto has = [&](CURLUPart part) { return !part_of(url, part).empty(); };
  return {.scheme = part_of(url, CURLUPART_SCHEME),
          .has_user = has(CURLUPART_USER) || has(CURLUPART_PASSWORD),
          .has_query = has(CURLUPART_QUERY) || has(CURLUPART_FRAGMENT)};
}

std::optional<HttpServerName> server_of(const std::string& text) {
  const Url url(curl_url());
  if (!text.starts_with("http") ||
      curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK ||
      !part_of(url, CURLUPART_USER).empty() || !part_of(url, CURLUPART_PASSWORD).empty()) {
    return std::nullopt;
  }
  HttpServerName server{.scheme = part_of(url, CURLUPART_SCHEME),
                        .host = part_of(url, CURLUPART_HOST),
                        .port = part_of(url, CURLUPART_PORT, CURLU_DEFAULT_PORT)};
  if ((server.scheme != "http" && server.scheme != "https") || server.host.empty()) {
    return std::nullopt;
  }
  return server;
}

}  // namespace tessera::http
