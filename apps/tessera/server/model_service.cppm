module tessera.app.server:model_service;

import tessera.app.base;
import :access;
import :http_server;
import :answer_format;
import :jobs;
import :server_counts;
import :serve;

// What all servers of models have: paths, names, and a thread that reads requests.

namespace tessera::app {

/// What is wrong with a request, with a status of its own.
class RequestError : public std::runtime_error {
 public:
  RequestError(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

HttpAnswer error_answer(int status, const std::string& message);
HttpAnswer error_answer(const std::exception& error);
/// Too many requests are waiting.
HttpAnswer busy_answer();

/// Error (input): a text of so many tokens is longer than the model's `room`. `field`: the
/// request's one with it.
void check_room(const char* field, std::int64_t tokens, std::int64_t room);

/// The last part of a path: what a model is called.
std::string model_name(const std::string& path);

/// Error (input): other machines could use the model without a token.
void check_host(const ServeOptions& options);

/// Answers `/health`, `/metrics` and `/v1/models`, and gives the bodies of other requests to
/// functions.
class ModelService : public HttpService {
 public:
  /// `token`: see access_problem(). `waiting`: requests that may wait for the readers' thread.
  ModelService(std::string name, std::string token, std::int64_t waiting);

  std::optional<HttpAnswer> refusal(const HttpHead& head) override;
  HttpAnswer error(const HttpProblem& problem) override;
  void handle(HttpRequest request, HttpResponder responder) override;

 protected:
  /// Answers a request by its body, in the thread of the readers. Errors become the answer.
  using Reader = std::function<void(const std::string& body, const HttpResponder& responder)>;
  void add(const std::string& path, Reader read);
  /// What requests may name; the model itself is the first.
  virtual std::vector<ServedModel> models() const;
  /// Answers / with a page in a browser.
  void add_page() { has_page_ = true; }
  /// Of an answer by `model`. `prefix`: what its id begins with.
  AnswerHead head(const char* prefix, const std::string& model);
  const std::string& name() const { return name_; }
  ServerCounts& counts() { return counts_; }
  /// Returns when no reader is called any more: the last that a class with readers does.
  void end_readers() { readers_.reset(); }

 private:
  void read_later(const Reader& read, std::string body, const HttpResponder& responder);

  std::string name_;
  std::string token_;
  std::map<std::string, Reader> posts_;
  bool has_page_ = false;
  ServerCounts counts_;
  std::int64_t started_;  // seconds since 1970
  std::atomic<std::int64_t> answers_ = 0;
  std::optional<TaskThread> readers_;
};

}  // namespace tessera::app
