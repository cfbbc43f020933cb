export module tessera.app.server:http_server;

import tessera.app.base;
import :http_message;

// A server of HTTP/1.x that holds its limits whatever clients send. It knows nothing of models.

export namespace tessera::app {

/// Where an answer goes. Copies are the same one; the functions may be called by any thread, and do
/// nothing once the client has gone. Without an answer before the last copy goes, the client gets
/// an error.
class HttpResponder {
 public:
  struct Exchange;
  explicit HttpResponder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  /// The whole answer.
  void answer(HttpAnswer answer) const;
  /// An answer whose body comes in parts: its beginning, parts, its end. `filler`: a part without a
  /// meaning, with which the server may ask the network whether the client is still there.
  void begin(HttpAnswer head, std::string filler) const;
  void write(std::string part) const;
  void end() const;
  /// Called once if the client goes before it has the whole answer, by the server's thread; at once
  /// where it has gone.
  void on_leave(std::function<void()> act) const;

 private:
  std::shared_ptr<Exchange> exchange_;
};

/// Who answers. The server's thread calls the functions: none may wait, or throw.
class HttpService {
 public:
  HttpService() = default;
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;
  virtual ~HttpService() = default;

  /// Whether a request is refused by its header, before its body is read: the connection ends then.
  virtual std::optional<HttpAnswer> refusal(const HttpHead& head) = 0;
  /// A whole request.
  virtual void handle(HttpRequest request, HttpResponder responder) = 0;
  /// The answer to what is wrong with a request.
  virtual HttpAnswer error(const HttpProblem& problem) = 0;
};

/// Accepts connections in a thread of its own, and needs no other one for them.
class HttpServer {
 public:
  /// The service must outlive it. `port` 0: any that is free. Errors (input): the address cannot be
  /// used, or with `loopback_only` is one that other machines reach; more connections than this
  /// process may have open files.
  HttpServer(const std::string& host, int port, bool loopback_only, const HttpLimits& limits,
             HttpService& service);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// Error: the server's thread has failed.
  void check() const;
  /// Ends: connections without a request at once, the others when their answers are sent, or after
  /// this time.
  void stop(std::chrono::milliseconds within);

 private:
  class Core;
  class Connection;
  friend class HttpResponder;
  friend struct HttpResponder::Exchange;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::app
