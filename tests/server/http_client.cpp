#include "http_client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "catch.hpp"

namespace server_test {
namespace {

using Clock = std::chrono::steady_clock;

int left_until(Clock::time_point until) {
  return static_cast<int>(std::max<std::int64_t>(
      0, std::chrono::duration_cast<Milliseconds>(until - Clock::now()).count()));
}

}  // namespace

Wire::Wire(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  REQUIRE(socket_ >= 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
}

Wire::Wire(Wire&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      ended_(other.ended_),
      unread_(std::move(other.unread_)) {}

bool Wire::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

void Wire::end_sending() { shutdown(socket_, SHUT_WR); }

void Wire::close() {
  if (socket_ >= 0) {
    ::close(std::exchange(socket_, -1));
  }
}

bool Wire::readable(Milliseconds within) {
  pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, static_cast<int>(within.count())) > 0;
}

bool Wire::more(Clock::time_point until) {
  pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
  if (ended_ || poll(&waiting, 1, left_until(until)) <= 0) {
    return false;
  }
  std::array<char, 65536> bytes{};
  const ssize_t count = recv(socket_, bytes.data(), bytes.size(), 0);
  if (count <= 0) {
    ended_ = true;
    return false;
  }
  unread_.append(bytes.data(), static_cast<std::size_t>(count));
  return true;
}

Response Wire::read(Milliseconds within) {
  const auto until = Clock::now() + within;
  const auto take = [&](std::size_t count) {
    std::string taken = unread_.substr(0, count);
    unread_.erase(0, count);
    return taken;
  };
  const auto line = [&] {
    std::size_t end = 0;
    while ((end = unread_.find("\r\n")) == std::string::npos) {
      if (!more(until)) {
        return std::string();
      }
    }
    const std::string text = take(end);
    take(2);
    return text;
  };
  const auto bytes = [&](std::size_t count) {
    while (unread_.size() < count && more(until)) {
    }
    return take(count);
  };
  Response response;
  const std::string first = line();
  if (!first.starts_with("HTTP/1.1 ") || first.size() < 12) {
    return response;
  }
  response.status = std::stoi(first.substr(9, 3));
  for (std::string header = line(); !header.empty(); header = line()) {
    const std::size_t colon = header.find(": ");
    REQUIRE(colon != std::string::npos);
    std::string name = header.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    CHECK(response.headers.emplace(name, header.substr(colon + 2)).second);
  }
  if (response.headers.contains("content-length")) {
    response.body = bytes(std::stoul(response.headers["content-length"]));
  } else if (response.headers.contains("transfer-encoding")) {
    for (std::size_t size = 1; size > 0;) {
      const std::string of_chunk = line();
      if (of_chunk.empty()) {
        response.status = -1;  // the stream was cut
        return response;
      }
      size = std::stoul(of_chunk, nullptr, 16);
      response.body += bytes(size);
      static_cast<void>(bytes(2));
    }
  } else if (response.status >= 200) {
    while (more(until)) {
    }
    response.body = take(unread_.size());
  }
  return response;
}

std::string Wire::read_all(Milliseconds within) {
  const auto until = Clock::now() + within;
  while (more(until)) {
  }
  return std::exchange(unread_, {});
}

bool Wire::closed(Milliseconds within) {
  static_cast<void>(read_all(within));
  return ended_;
}

std::string post(std::string_view body, std::string_view headers, std::string_view path) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + std::string(headers) + "\r\n" + std::string(body);
}

std::string get(std::string_view path, std::string_view headers) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) +
         "\r\n";
}

Response ask(int port, std::string_view request, Milliseconds within) {
  Wire wire(port);
  wire.send(request);
  return wire.read(within);
}

std::string error_in(const Response& response) {
  return nlohmann::json::parse(response.body).at("error").at("message").get<std::string>();
}

}  // namespace server_test
