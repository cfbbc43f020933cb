// A small HTTP server in a thread of a test, which answers as it is told, or worse.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

namespace tessera::testing {

struct Request {
  std::string method;
  std::string path;  // with what follows '?'
  std::string head;  // all of its lines
  std::string body;
};

/// What becomes of an answer.
enum class Fault {
  none,
  reset,    // the connection is reset instead
  closed,   // closed without a byte
  half,     // a part of it, then closed
  garbage,  // other bytes
  slow,     // a byte each 20 ms
  never,    // nothing, for as long as the other side waits
};

struct Reply {
  int code = 200;
  std::string body = "{}";
  std::string headers = {};  // further lines, each with its end
  Fault fault = Fault::none;
  bool no_length = false;  // without Content-Length
};

class HttpServer {
 public:
  using Handler = std::function<Reply(const Request& request)>;

  explicit HttpServer(Handler handler, int port = 0) : handler_(std::move(handler)) {
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(listening_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    REQUIRE(::bind(listening_, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    REQUIRE(::listen(listening_, 64) == 0);
    ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &bytes);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer() {
    stopping_ = true;
    thread_.join();
    ::close(listening_);
  }

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  /// One connection after the other; each answers one request.
  void serve() {
    while (!stopping_) {
      pollfd ready{.fd = listening_, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 20) != 1) {
        continue;
      }
      const int connection = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection >= 0) {
        answer(connection);
        ::close(connection);
      }
    }
  }

  /// Waits for bytes; false: the other side has gone, or this one stops.
  bool read_more(int connection, std::string& text) {
    char bytes[4096];
    while (!stopping_) {
      pollfd ready{.fd = connection, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, 20) == 1) {
        const ssize_t count = ::recv(connection, bytes, sizeof bytes, 0);
        if (count <= 0) {
          return false;
        }
        text.append(bytes, static_cast<std::size_t>(count));
        return true;
      }
    }
    return false;
  }

  void answer(int connection) {
    std::string text;
    std::size_t end = std::string::npos;
    while ((end = text.find("\r\n\r\n")) == std::string::npos) {
      if (!read_more(connection, text)) {
        return;
      }
    }
    Request request;
    request.head = text.substr(0, end);
    request.method = text.substr(0, text.find(' '));
    const std::size_t path = request.method.size() + 1;
    request.path = text.substr(path, text.find(' ', path) - path);
    std::string lower = request.head;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string length = "content-length: ";
    const std::size_t at = lower.find(length);
    const std::size_t bytes =
        at == std::string::npos ? 0 : std::strtoul(lower.c_str() + at + length.size(), nullptr, 10);
    request.body = text.substr(end + 4);
    while (request.body.size() < bytes) {
      if (!read_more(connection, request.body)) {
        return;
      }
    }
    const Reply reply = handler_(request);
    const bool is_head = request.method == "HEAD";
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    send(connection, reply, is_head);
  }

  void send(int connection, const Reply& reply, bool is_head) {
    std::string text = "HTTP/1.1 " + std::to_string(reply.code) + " X\r\n";
    if (!reply.no_length) {
      text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    }
    text += "Connection: close\r\n" + reply.headers + "\r\n" + (is_head ? "" : reply.body);
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    switch (reply.fault) {
      case Fault::reset:
        ::setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        return;
      case Fault::closed:
        return;
      case Fault::half:
        text.resize(text.size() - std::min<std::size_t>(text.size(), reply.body.size() / 2 + 1));
        break;
      case Fault::garbage:
        text = "\x01\x02 not HTTP\r\n\r\n";
        break;
      case Fault::slow:
        for (const char c : text) {
          if (stopping_ || ::send(connection, &c, 1, MSG_NOSIGNAL) != 1) {
            return;
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        return;
      case Fault::never:
        for (std::string rest; read_more(connection, rest);) {
        }
        return;
      case Fault::none:
        break;
    }
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t count =
          ::send(connection, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (count <= 0) {
        return;
      }
      done += static_cast<std::size_t>(count);
    }
  }

  Handler handler_;
  int listening_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace tessera::testing
