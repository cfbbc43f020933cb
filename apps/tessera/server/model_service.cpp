module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.server;

import :chat_page;
import :model_service;
import tessera.base;

namespace tessera::app {
namespace {

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

bool is_allowed(const HttpRequest& request, std::initializer_list<const char*> methods,
                const HttpResponder& responder) {
  if (std::ranges::find(methods, request.method) != methods.end()) {
    return true;
  }
  HttpAnswer answer = error_answer(405, "the path is not one for this method");
  answer.headers.push_back({"Allow", fmt::format("{}", fmt::join(methods, ", "))});
  responder.answer(answer);
  return false;
}

void answer_get(const HttpRequest& request, const HttpResponder& responder, HttpAnswer answer) {
  if (is_allowed(request, {"GET", "HEAD"}, responder)) {
    responder.answer(std::move(answer));
  }
}

}  // namespace

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
  if (const auto* const own = dynamic_cast<const RequestError*>(&error)) {
    return error_answer(own->status(), own->what());
  }
  const auto* const known = dynamic_cast<const Error*>(&error);
  const ErrorKind kind = known == nullptr ? ErrorKind::run : known->kind();
  return error_answer(kind == ErrorKind::input         ? 400
                      : kind == ErrorKind::interrupted ? 503
                                                       : 500,
                      error.what());
}

HttpAnswer busy_answer() { return error_answer(503, "too many requests are waiting"); }

void check_room(const char* field, std::int64_t tokens, std::int64_t room) {
  if (tokens > room) {
    fail_input({.thing = field,
                .wrong = "it is longer than the model is meant for",
                .expected = fmt::format("at most {} tokens", room),
                .got = fmt::format("{}", tokens)});
  }
}

std::string model_name(const std::string& path) {
  const auto whole = std::filesystem::absolute(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

void check_host(const ServeOptions& options) {
  if (!is_local(options.host) && options.token.empty()) {
    fail_input({.thing = options.host,
                .wrong = "other machines could use the model without a token",
                .advice = "give --token-file, or leave out --host"});
  }
}

ModelService::ModelService(std::string name, std::string token, std::int64_t waiting)
    : name_(std::move(name)),
      token_(std::move(token)),
      started_(static_cast<std::int64_t>(std::time(nullptr))) {
  readers_.emplace(static_cast<std::size_t>(waiting));
}

void ModelService::add(const std::string& path, Reader read) {
  posts_.emplace(path, std::move(read));
}

std::vector<ServedModel> ModelService::models() const {
  return {{.name = name_, .created = started_}};
}

std::optional<HttpAnswer> ModelService::refusal(const HttpHead& head) {
  // The page has no secret, and asks for the token.
  const bool is_page = has_page_ && !token_.empty() && head.path == "/" && head.method == "GET";
  const auto problem = is_page ? std::nullopt : access_problem(head, token_);
  return problem ? std::optional(error(*problem)) : std::nullopt;
}

HttpAnswer ModelService::error(const HttpProblem& problem) {
  return error_answer(problem.status, problem.text);
}

void ModelService::handle(HttpRequest request, HttpResponder responder) {
  constexpr std::string_view all = "/v1/models";
  if (const auto found = posts_.find(request.path); found != posts_.end()) {
    if (is_allowed(request, {"POST"}, responder)) {
      read_later(found->second, std::move(request.body), responder);
    }
  } else if (has_page_ && request.path == "/") {
    answer_get(request, responder, chat_page());
  } else if (request.path == "/health") {
    answer_get(request, responder, {.body = "{\"status\":\"ok\"}"});
  } else if (request.path == "/metrics") {
    answer_get(request, responder,
               {.type = "text/plain; version=0.0.4; charset=utf-8", .body = counts_.text()});
  } else if (request.path == all) {
    answer_get(request, responder, {.body = models_json(models())});
  } else if (request.path.starts_with(std::string(all) + "/")) {
    const std::string asked = decoded(std::string_view(request.path).substr(all.size() + 1));
    const std::vector<ServedModel> there = models();
    const auto named = std::ranges::find(there, asked, &ServedModel::name);
    if (named != there.end()) {
      answer_get(request, responder, {.body = model_json(*named)});
    } else {
      responder.answer(error_answer(404, "there is no such model"));
    }
  } else {
    responder.answer(error_answer(404, "there is no such path"));
  }
}

AnswerHead ModelService::head(const char* prefix, const std::string& model) {
  return {.id = fmt::format("{}-{}-{}", prefix, started_, ++answers_),
          .model = model,
          .created = static_cast<std::int64_t>(std::time(nullptr))};
}

void ModelService::read_later(const Reader& read, std::string body,
                              const HttpResponder& responder) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  responder.on_leave([left] { *left = true; });
  // The functions outlive the thread of the readers.
  const auto task = [&read, left, responder, text = std::move(body)] {
    if (*left) {
      return;
    }
    try {
      read(text, responder);
    } catch (const std::exception& error) {
      responder.answer(error_answer(error));
    }
  };
  if (!readers_->add(task)) {
    responder.answer(busy_answer());
  }
}

}  // namespace tessera::app
