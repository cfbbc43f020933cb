module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.text;

namespace tessera::app {
namespace {

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

bool is_to_stop(const text::TextModel& model) {
  return stop_requested != 0 || model.ranks().interrupted();
}

/// The last part of a path.
std::string name_of(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

/// The name in a path of which some bytes may be written as %XX.
std::string decoded(std::string_view path) {
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = path.data() + i + 1;
    if (path[i] == '%' && i + 2 < path.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else {
      text += path[i];
    }
  }
  return text;
}

HttpAnswer error_answer(int status, const std::string& message) {
  const char* const type = status == 401   ? "authentication_error"
                           : status == 403 ? "permission_error"
                           : status < 500  ? "invalid_request_error"
                                           : "server_error";
  HttpAnswer answer{.status = status, .body = error_json(message, type)};
  if (status == 401) {
    answer.headers.push_back({"WWW-Authenticate", "Bearer"});
  }
  if (status == 503) {
    answer.headers.push_back({"Retry-After", "1"});
  }
  return answer;
}

HttpAnswer error_answer(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  const ErrorKind kind = known == nullptr ? ErrorKind::run : known->kind();
  return error_answer(kind == ErrorKind::input         ? 400
                      : kind == ErrorKind::interrupted ? 503
                                                       : 500,
                      error.what());
}

/// An answer as events. The model's thread writes it.
struct EventStream {
  EventStream(HttpResponder to, AnswerHead of) : responder(std::move(to)), head(std::move(of)) {}
  void write(const std::string& event) {
    if (!std::exchange(begun, true)) {
      responder.begin({.type = "text/event-stream",
                       .body = first_event(head),
                       .headers = {{"Cache-Control", "no-cache"}}},
                      ": \n\n");  // a comment
    }
    responder.write(event);
  }

  HttpResponder responder;
  AnswerHead head;
  bool begun = false;
};

/// What the server has for its clients: the model's answers, several at the same time.
class ChatServer : public HttpService {
 public:
  ChatServer(const text::TextModel& model, const ServeOptions& options)
      : model_(model),
        options_(options),
        format_(model, options.chat_template),
        engine_(model.ranks(), model.shape().vocab, options.engine),
        jobs_(static_cast<std::size_t>(options.waiting)),
        name_(name_of(model.path())),
        readers_(static_cast<std::size_t>(options.waiting)) {
    options_.defaults.end_tokens = format_.end_tokens();
  }

  void run(const std::function<void(int)>& started) {
    HttpServer http(options_.host, options_.port, options_.token.empty(), options_.limits, *this);
    try {
      started(http.port());
      while (!stops()) {
        begin_jobs();
        engine_.step();
        model_.ranks().check_others();
        http.check();
      }
      engine_.step();  // those that are not wanted any more are told
    } catch (...) {
      jobs_.close();
      throw;
    }
    jobs_.close();
    http.stop(std::chrono::milliseconds(300));
  }

  std::optional<HttpAnswer> refusal(const HttpHead& head) override {
    const auto problem = access_problem(head, options_.token);
    return problem ? std::optional(error(*problem)) : std::nullopt;
  }

  HttpAnswer error(const HttpProblem& problem) override {
    return error_answer(problem.status, problem.text);
  }

  void handle(HttpRequest request, HttpResponder responder) override {
    constexpr std::string_view models = "/v1/models";
    if (request.path == "/v1/chat/completions") {
      if (!is_allowed(request, {"POST"}, responder)) {
        return;
      }
      const auto left = std::make_shared<std::atomic<bool>>(false);
      responder.on_leave([left] { *left = true; });
      const auto read = [this, left, responder, body = std::move(request.body)] {
        if (!*left) {
          complete(body, responder);
        }
      };
      if (!readers_.add(read)) {
        responder.answer(busy());
      }
    } else if (request.path == "/health") {
      answer_get(request, responder, "{\"status\":\"ok\"}");
    } else if (request.path == models) {
      answer_get(request, responder, models_json(head()));
    } else if (request.path.starts_with(std::string(models) + "/") &&
               decoded(std::string_view(request.path).substr(models.size() + 1)) == name_) {
      answer_get(request, responder, model_json(head()));
    } else {
      responder.answer(error_answer(404, request.path.starts_with(models)
                                             ? "there is no such model"
                                             : "there is no such path"));
    }
  }

 private:
  bool stops() const { return is_to_stop(model_); }

  /// Those that wait join, while there are places; where nothing is at work, after a time at most.
  void begin_jobs() {
    while (engine_.size() < options_.engine.most) {
      const std::chrono::milliseconds within(engine_.size() == 0 ? 100 : 0);
      const auto job = jobs_.take(within);
      if (!job) {
        return;
      }
      AnswerJob::begin(job, model_, engine_, [this] { return !stops(); });
    }
  }

  static HttpAnswer busy() { return error_answer(503, "too many requests are waiting"); }

  static bool is_allowed(const HttpRequest& request, std::initializer_list<const char*> methods,
                         const HttpResponder& responder) {
    if (std::ranges::find(methods, request.method) != methods.end()) {
      return true;
    }
    HttpAnswer answer = error_answer(405, "the path is not one for this method");
    answer.headers.push_back({"Allow", fmt::format("{}", fmt::join(methods, ", "))});
    responder.answer(answer);
    return false;
  }

  static void answer_get(const HttpRequest& request, const HttpResponder& responder,
                         std::string body) {
    if (is_allowed(request, {"GET", "HEAD"}, responder)) {
      responder.answer({.body = std::move(body)});
    }
  }

  AnswerHead head() {
    return {.id = fmt::format("chatcmpl-{}-{}", started_, ++answers_),
            .model = name_,
            .created = static_cast<std::int64_t>(std::time(nullptr))};
  }

  /// Reads the request, in a thread of its own; the model's thread answers it.
  void complete(const std::string& body, const HttpResponder& responder) {
    try {
      ChatRequest chat = parse_chat_request(body, options_.defaults, model_.shape().vocab);
      const std::vector<std::int64_t> prompt = format_.prompt(chat.messages);
      const std::int64_t room = model_.usual_length() - std::ssize(prompt);
      if (room < 1) {
        fail_input({.thing = "messages",
                    .wrong = "the conversation is longer than the model is meant for",
                    .expected = fmt::format("less than {} tokens", model_.usual_length()),
                    .got = fmt::format("{}", prompt.size())});
      }
      chat.options.tokens = std::min(chat.options.tokens, room);
      const auto job = std::make_shared<AnswerJob>(
          prompt, std::move(chat.options), std::chrono::seconds(options_.seconds),
          chat.stream ? stream_to(responder, std::ssize(prompt), chat.stream_usage)
                      : whole_to(responder, std::ssize(prompt)));
      // The job has the responder: it must not have the job.
      responder.on_leave([this, weak = std::weak_ptr(job)] {
        if (const auto there = weak.lock()) {
          jobs_.leave(there);
        }
      });
      if (!jobs_.add(job)) {
        responder.answer(busy());
        return;
      }
    } catch (const std::exception& error) {
      responder.answer(error_answer(error));
    }
  }

  AnswerReceiver whole_to(const HttpResponder& responder, std::int64_t prompt_tokens) {
    return {.part = [](const std::string&) {},
            .end =
                [=, head = head()](const text::GeneratedText& text) {
                  const TokenUsage usage{.prompt = prompt_tokens,
                                         .completion = std::ssize(text.tokens)};
                  responder.answer({.body = answer_json(head, text, usage)});
                },
            .failed = [=](const std::exception& error) { responder.answer(error_answer(error)); }};
  }

  /// The answer begins with its first part: until then it can be an error.
  AnswerReceiver stream_to(const HttpResponder& responder, std::int64_t prompt_tokens,
                           bool with_usage) {
    const auto stream = std::make_shared<EventStream>(responder, head());
    return {.part = [=](const std::string& part) { stream->write(part_event(stream->head, part)); },
            .end =
                [=](const text::GeneratedText& text) {
                  const TokenUsage usage{.prompt = prompt_tokens,
                                         .completion = std::ssize(text.tokens)};
                  stream->write(last_event(stream->head, text.end, with_usage ? &usage : nullptr));
                  stream->responder.end();
                },
            .failed =
                [=](const std::exception& error) {
                  const HttpAnswer answer = error_answer(error);
                  if (!stream->begun) {
                    stream->responder.answer(answer);
                    return;
                  }
                  stream->write("data: " + answer.body + "\n\n");
                  stream->responder.end();
                }};
  }

  const text::TextModel& model_;
  ServeOptions options_;
  text::ChatFormat format_;
  text::Engine engine_;
  JobQueue jobs_;
  std::string name_;
  std::int64_t started_ = static_cast<std::int64_t>(std::time(nullptr));
  std::atomic<std::int64_t> answers_ = 0;
  TaskThread readers_;  // the last one: its tasks use the others
};

}  // namespace

void serve(const text::TextModel& model, const ServeOptions& options,
           const std::function<void(int)>& started) {
  if (!is_local(options.host) && options.token.empty()) {
    fail_input({.thing = options.host,
                .wrong = "other machines could use the model without a token",
                .advice = "give --token-file, or leave out --host"});
  }
  const StopSignals signals;
  // A pass of a large model may last longer than anybody waits after SIGTERM.
  const LastMoment last(
      std::chrono::milliseconds(1200), [&] { return is_to_stop(model); },
      [&] { model.ranks().end_process(); });
  ChatServer(model, options).run(started);
}

}  // namespace tessera::app
