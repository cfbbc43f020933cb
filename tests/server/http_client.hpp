// A client that sends exactly the bytes that a test wants.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <string_view>

namespace server_test {

using Milliseconds = std::chrono::milliseconds;
inline constexpr Milliseconds patience{60'000};

struct Response {
  int status = -1;                                  // -1: there was none
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
};

/// A connection to 127.0.0.1.
class Wire {
 public:
  explicit Wire(int port);
  ~Wire() { close(); }
  Wire(Wire&& other) noexcept;
  Wire& operator=(Wire&&) = delete;

  /// False: the server takes no more.
  bool send(std::string_view bytes);
  /// Nothing follows, but answers are read.
  void end_sending();
  /// The connection is gone, with or without what is on the way.
  void close();
  /// The next response on the connection, or none within the time or before the end.
  Response read(Milliseconds within = patience);
  /// Everything up to the end of the connection, or what has come within the time.
  std::string read_all(Milliseconds within = patience);
  /// Whether the server has closed the connection, or does so within the time.
  bool closed(Milliseconds within = patience);
  /// Waits until a byte can be read, or the connection has ended.
  bool readable(Milliseconds within);

 private:
  /// Reads more; false at the end or after the time.
  bool more(std::chrono::steady_clock::time_point until);

  int socket_ = -1;
  bool ended_ = false;
  std::string unread_;
};

/// The text of a request with a body, and of one without.
std::string post(std::string_view body, std::string_view headers = "",
                 std::string_view path = "/v1/chat/completions");
std::string get(std::string_view path, std::string_view headers = "");

/// Sends it on a connection of its own, and reads the first response.
Response ask(int port, std::string_view request, Milliseconds within = patience);

/// The message of an error's body.
std::string error_in(const Response& response);

}  // namespace server_test
