export module tessera.app.server:http_message;

import tessera.app.base;

// Requests and answers of HTTP/1.x, and what of a request is accepted before anything is kept.

export namespace tessera::app {

/// What a client may send, and how long it may take. Nothing is kept beyond these.
struct HttpLimits {
  std::size_t request_line = 8192;                  // bytes
  std::size_t header_bytes = 32768;                 // of the request line and all header lines
  std::size_t header_lines = 100;                   // with the request line
  std::size_t body_bytes = std::size_t{1} << 20;    // of a body, whether or not it is in chunks
  std::size_t unread_bytes = std::size_t{4} << 20;  // of a stream that the client does not read
  std::size_t connections = 512;                    // from all addresses
  std::size_t connections_of_address = 256;         // IPv6: of a network of 64 bits
  std::size_t requests_of_connection = 1000;        // then it is closed
  std::chrono::milliseconds header_time{10'000};    // from a request's first byte
  std::chrono::milliseconds body_time{30'000};      // from the end of the header
  std::chrono::milliseconds idle_time{60'000};      // between two requests
  std::chrono::milliseconds unread_time{30'000};    // in which a client takes nothing of an answer
};

struct HttpHeader {
  std::string name;  // of a request: in lower case
  std::string value;
};

/// A request without its body.
struct HttpHead {
  std::string method;
  std::string path;  // of the target, without a query
  bool http_1_1 = true;
  std::vector<HttpHeader> headers;

  /// Null: there is no such header. `name`: in lower case.
  const std::string* header(std::string_view name) const;
};

struct HttpRequest : HttpHead {
  std::string body;
};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<HttpHeader> headers = {};  // further ones
};

/// What is wrong with a request.
struct HttpProblem {
  int status = 400;
  std::string text;
};

/// Finds the end of a request's header while it arrives. Stricter than the grammar of old clients:
/// where servers and proxies read a header differently, a second request can be hidden in it.
class HeaderScan {
 public:
  explicit HeaderScan(const HttpLimits& limits) : limits_(&limits) {}

  /// Reads further bytes, up to the end of the header. False: problem() says why it is refused.
  bool add(std::string_view bytes);
  bool ended() const { return ended_; }
  /// Bytes that were read.
  std::size_t size() const { return size_; }
  const HttpProblem& problem() const { return problem_; }

 private:
  bool add_byte(char byte);
  bool refuse(int status, const char* text);

  const HttpLimits* limits_;
  std::size_t size_ = 0;
  std::size_t lines_ = 0;
  std::size_t in_line_ = 0;  // bytes of the line so far
  char last_ = '\0';
  bool ended_ = false;
  HttpProblem problem_ = {};
};

/// What makes a request ambiguous or is not supported, of one whose header could be parsed: more
/// than one length, host or the like, a length beside chunks, other encodings and targets. Nothing:
/// it may be read.
std::optional<HttpProblem> problem_of(const HttpHead& head, std::string_view target);

/// The value without the case of ASCII letters.
std::string lower_case(std::string_view text);

}  // namespace tessera::app
