module;
#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.app.generation;

namespace tessera::app {
namespace {

constexpr const char* json_type = "application/json";

volatile std::sig_atomic_t stop_requested = 0;

/// While it exists, SIGINT and SIGTERM set `stop_requested`.
class StopSignals {
 public:
  StopSignals() {
    stop_requested = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { stop_requested = 1; };
    sigaction(SIGINT, &action, &before_[0]);
    sigaction(SIGTERM, &action, &before_[1]);
  }
  ~StopSignals() {
    sigaction(SIGINT, &before_[0], nullptr);
    sigaction(SIGTERM, &before_[1], nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  std::array<struct sigaction, 2> before_ = {};
};

/// In a time that does not depend on where they differ.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return difference == 0;
}

bool is_local(std::string_view host) {
  return host == "127.0.0.1" || host == "localhost" || host == "::1" || host == "[::1]";
}

/// A Host header without its port.
std::string_view without_port(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const std::size_t bracket = host.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? host.substr(0, colon) : host;
}

/// The last part of a path.
std::string name_of(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

void set_error(httplib::Response& response, int status, const std::string& message,
               const char* type) {
  response.status = status;
  response.set_content(error_json(message, type), json_type);
}

/// The thread that accepts connections, until the object goes. No job may wait then.
class Listener {
 public:
  explicit Listener(httplib::Server& http)
      : http_(http), thread_([this] {
          http_.listen_after_bind();
          runs_ = false;
        }) {}
  ~Listener() {
    while (runs_ && !http_.is_running()) {  // before that, stop() does nothing
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    http_.stop();
    thread_.join();
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  bool runs() const { return runs_; }

 private:
  httplib::Server& http_;
  std::atomic<bool> runs_ = true;
  std::thread thread_;
};

class ChatServer {
 public:
  ChatServer(const TextModel& model, const ServeOptions& options)
      : model_(model),
        options_(options),
        format_(model, options.chat_template),
        decoding_(model.ranks(), model.shape().vocab),
        jobs_(static_cast<std::size_t>(options.waiting)),
        name_(name_of(model.path())) {
    options_.defaults.end_tokens = format_.end_tokens();
    configure();
  }

  void run(const std::function<void(int)>& started) {
    const StopSignals signals;
    const int port = bound();
    const Listener listener(http_);
    try {
      started(port);
      while (!stops() && listener.runs()) {
        if (const auto job = jobs_.take(std::chrono::milliseconds(100))) {
          job->run(model_, decoding_, [this] { return !stops(); });
        }
        model_.ranks().check_others();
      }
    } catch (...) {
      jobs_.close();
      throw;
    }
    jobs_.close();
  }

 private:
  bool stops() const { return stop_requested != 0 || model_.ranks().interrupted(); }

  int bound() {
    const int port = options_.port == 0 ? http_.bind_to_any_port(options_.host)
                     : http_.bind_to_port(options_.host, options_.port) ? options_.port
                                                                        : -1;
    if (port < 0) {
      fail_input({.thing = fmt::format("{}:{}", options_.host, options_.port),
                  .wrong = "the server cannot listen at this address",
                  .advice = "choose another --port; another program may use it"});
    }
    return port;
  }

  void configure() {
    constexpr int more_threads = 4;  // for requests that are refused at once
    const auto threads = static_cast<std::size_t>(options_.waiting + 1 + more_threads);
    http_.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
    // Not the library's own options, by which two servers may share a port.
    http_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    http_.set_payload_max_length(static_cast<std::size_t>(options_.request_bytes));
    http_.set_keep_alive_max_count(100);
    http_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          return allowed(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                            : httplib::Server::HandlerResponse::Handled;
        });
    http_.set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.body.empty()) {
        set_error(response, response.status,
                  response.status == 404   ? "there is no such path, or not with this method"
                  : response.status == 413 ? "the request is too large"
                                           : "the request cannot be answered",
                  "invalid_request_error");
      }
    });
    http_.Get("/health", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("{\"status\":\"ok\"}", json_type);
    });
    http_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(models_json(head()), json_type);
    });
    http_.Post("/v1/chat/completions",
               [this](const httplib::Request& request, httplib::Response& response) {
                 try {
                   complete(request, response);
                 } catch (const Error& error) {
                   const bool input = error.kind() == ErrorKind::input;
                   set_error(response, input ? 400 : 500, error.what(),
                             input ? "invalid_request_error" : "server_error");
                 } catch (const std::exception& error) {
                   set_error(response, 500, error.what(), "server_error");
                 }
               });
  }

  /// Pages of other origins must not reach the model through a browser: without a token only the
  /// names of this machine are taken, and bodies must be JSON, which browsers ask about first.
  bool allowed(const httplib::Request& request, httplib::Response& response) const {
    if (!options_.token.empty() &&
        !same_secret(request.get_header_value("Authorization"), "Bearer " + options_.token)) {
      response.set_header("WWW-Authenticate", "Bearer");
      set_error(response, 401, "the token is missing or wrong", "authentication_error");
      return false;
    }
    if (options_.token.empty() && is_local(options_.host) &&
        !is_local(without_port(request.get_header_value("Host")))) {
      set_error(response, 403, "the request is for another host", "permission_error");
      return false;
    }
    if (request.method == "POST" &&
        !request.get_header_value("Content-Type").starts_with(json_type)) {
      set_error(response, 415, "the content type must be application/json",
                "invalid_request_error");
      return false;
    }
    return true;
  }

  AnswerHead head() {
    return {.id = fmt::format("chatcmpl-{}-{}", started_, ++answers_),
            .model = name_,
            .created = static_cast<std::int64_t>(std::time(nullptr))};
  }

  void complete(const httplib::Request& request, httplib::Response& response) {
    ChatRequest chat = parse_chat_request(request.body, options_.defaults);
    const std::vector<std::int64_t> prompt = format_.prompt(chat.messages);
    const std::int64_t room = model_.usual_length() - std::ssize(prompt);
    if (room < 1) {
      fail_input({.thing = "messages",
                  .wrong = "the conversation is longer than the model is meant for",
                  .expected = fmt::format("less than {} tokens", model_.usual_length()),
                  .got = fmt::format("{}", prompt.size())});
    }
    chat.options.tokens = std::min(chat.options.tokens, room);
    const auto job = std::make_shared<AnswerJob>(prompt, std::move(chat.options),
                                                 std::chrono::seconds(options_.seconds));
    if (!jobs_.add(job)) {
      response.set_header("Retry-After", "1");
      set_error(response, 503, "too many requests are waiting", "server_error");
      return;
    }
    const auto prompt_tokens = std::ssize(prompt);
    if (chat.stream) {
      stream(job, prompt_tokens, chat.stream_usage, response);
      return;
    }
    const GeneratedText text = job->wait();
    response.set_content(
        answer_json(head(), text, {.prompt = prompt_tokens, .completion = std::ssize(text.tokens)}),
        json_type);
  }

  void stream(const std::shared_ptr<AnswerJob>& job, std::int64_t prompt_tokens, bool with_usage,
              httplib::Response& response) {
    const auto write = [](httplib::DataSink& sink, const std::string& text) {
      return sink.write(text.data(), text.size());
    };
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream",
        [=, head = head(), begun = false](std::size_t, httplib::DataSink& sink) mutable {
          if (!std::exchange(begun, true)) {
            return write(sink, first_event(head));
          }
          if (const std::string part = job->read(); !part.empty()) {
            return write(sink, part_event(head, part));
          }
          try {
            const GeneratedText text = job->wait();
            const TokenUsage usage{.prompt = prompt_tokens, .completion = std::ssize(text.tokens)};
            write(sink, last_event(head, text.end, with_usage ? &usage : nullptr));
          } catch (const std::exception& error) {
            write(sink, "data: " + error_json(error.what(), "server_error") + "\n\n");
          }
          sink.done();
          return true;
        },
        [job](bool) { job->cancel(); });
  }

  const TextModel& model_;
  ServeOptions options_;
  ChatFormat format_;
  Decoding decoding_;
  JobQueue jobs_;
  std::string name_;
  std::int64_t started_ = static_cast<std::int64_t>(std::time(nullptr));
  std::atomic<std::int64_t> answers_ = 0;
  httplib::Server http_;
};

}  // namespace

void serve(const TextModel& model, const ServeOptions& options,
           const std::function<void(int)>& started) {
  if (!is_local(options.host) && options.token.empty()) {
    fail_input({.thing = options.host,
                .wrong = "other machines could use the model without a token",
                .advice = "give --token-file, or leave out --host"});
  }
  ChatServer(model, options).run(started);
}

}  // namespace tessera::app
