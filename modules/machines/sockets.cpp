// TCP between machines: what the launchers of a run and the transport tcp have in common.
module;
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import :sockets;

namespace tessera::collective {
namespace {

/// Small messages leave at once, and a machine that is gone is noticed within half a minute.
void tune(int socket) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);  // milliseconds
}

Endpoint endpoint_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return {text.data(), ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  std::string host = text.data();
  if (host.starts_with("::ffff:") && host.find('.') != std::string::npos) {
    host = host.substr(7);  // an IPv4 connection to a socket for both
  }
  return {host, ntohs(v6.sin6_port)};
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// The addresses of an endpoint; null, and `why`: there are none.
Addresses resolve(const Endpoint& endpoint, bool numeric, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    why = fmt::format("the host '{}' is not known: {}", endpoint.host, gai_strerror(error));
  }
  return {found, [](addrinfo* list) {
            if (list != nullptr) {
              freeaddrinfo(list);
            }
          }};
}

/// Begins to connect to one address.
Socket begin(const addrinfo& address, std::string& why) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open() || (connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) != 0 &&
                         errno != EINPROGRESS)) {
    why = std::strerror(errno);
    return {};
  }
  tune(socket.descriptor());
  return socket;
}

/// Listens at one address; empty: at all. Not open: see errno.
Socket listen_at_one(const std::string& address, int port) {
  constexpr int backlog = 4096;
  const int on = 1;
  const auto listens = [&](int family, const sockaddr* at, socklen_t bytes, int only_v6) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (family == AF_INET6 && socket.open()) {
      setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
    }
    // A port whose last connections are being forgotten is free.
    if (socket.open() &&
        (setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
         bind(socket.descriptor(), at, bytes) != 0 || listen(socket.descriptor(), backlog) != 0)) {
      const int error = errno;
      socket.close();
      errno = error;
    }
    return socket;
  };
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool is_six = inet_pton(AF_INET6, address.c_str(), &six.sin6_addr) == 1;
  const bool is_four = inet_pton(AF_INET, address.c_str(), &four.sin_addr) == 1;
  Socket socket;
  if (is_six || !is_four) {
    socket =
        listens(AF_INET6, reinterpret_cast<const sockaddr*>(&six), sizeof(six), is_six ? 1 : 0);
  }
  if (is_four || (!socket.open() && !is_six && errno == EAFNOSUPPORT)) {  // without IPv6
    socket = listens(AF_INET, reinterpret_cast<const sockaddr*>(&four), sizeof(four), 0);
  }
  return socket;
}

}  // namespace

Endpoint parse_endpoint(std::string_view thing, std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const std::string_view port = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::string_view host = text.substr(0, std::min(colon, text.size()));
  const bool bracketed = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  if (bracketed) {
    host = host.substr(1, host.size() - 2);
  }
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || (!bracketed && host.find(':') != std::string_view::npos) ||
      error != std::errc{} || end != port.data() + port.size() || number < 1 || number > 65535) {
    fail_input({.thing = std::string(thing),
                .wrong = "not an address",
                .expected = "HOST:PORT, such as alpha:29500",
                .got = fmt::format("'{}'", text)});
  }
  return {std::string(host), number};
}

std::string to_string(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
            : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int Socket::release() { return std::exchange(descriptor_, -1); }

void Socket::close() {
  if (const int descriptor = release(); descriptor >= 0) {
    ::close(descriptor);
  }
}

Endpoint Socket::own_end() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  const bool known = getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  return known ? endpoint_of(address) : Endpoint();
}

Endpoint Socket::other_end() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  const bool known = getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  return known ? endpoint_of(address) : Endpoint();
}

bool is_loopback(const Endpoint& numeric) {
  return numeric.host == "::1" || numeric.host.starts_with("127.");
}

std::vector<Socket> listen_at(const std::vector<std::string>& addresses, int port) {
  constexpr int most_tries = 20;  // of a port that is free at one address and not at another one
  std::vector<Socket> sockets;
  for (int tries = 0; tries < most_tries; ++tries) {
    sockets.clear();
    int used = port;
    int error = 0;
    for (const std::string& address :
         addresses.empty() ? std::vector<std::string>{""} : addresses) {
      Socket socket = listen_at_one(address, used);
      if (socket.open()) {
        used = socket.own_end().port;
        sockets.push_back(std::move(socket));
      } else if (error == 0 || (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)) {
        error = errno;
      }
    }
    const bool missing = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;  // as IPv6 may be
    if (!sockets.empty() && (error == 0 || missing)) {
      return sockets;
    }
    if (port != 0 || error != EADDRINUSE) {
      const std::string where =
          addresses.empty() ? "" : fmt::format("{}, ", fmt::join(addresses, " and "));
      fail_input({.thing = "launch",
                  .wrong = fmt::format("cannot listen at {}port {} ({})", where, port,
                                       std::strerror(error)),
                  .advice = missing ? "the address must be one of this machine's; mesh.interface "
                                      "names one, or 0.0.0.0 for all"
                                    : "choose another port, the same for all machines"});
    }
  }
  fail({.thing = "launch", .wrong = "no port is free at all addresses"});
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.open()) {
    tune(socket.descriptor());
  }
  return socket;
}

Socket begin_connect(const Endpoint& numeric, std::string& why) {
  const Addresses addresses = resolve(numeric, true, why);
  return addresses == nullptr ? Socket() : begin(*addresses, why);
}

Socket connect_within(const Endpoint& to, double seconds, std::string& why) {
  const Addresses addresses = resolve(to, false, why);
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    Socket socket = begin(*at, why);
    if (!socket.open()) {
      continue;
    }
    pollfd waiting{socket.descriptor(), POLLOUT, 0};
    int error = ETIMEDOUT;
    socklen_t bytes = sizeof(error);
    if (poll(&waiting, 1, static_cast<int>(1000 * seconds)) > 0) {
      getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (error == 0) {
      return socket;
    }
    why = std::strerror(error);
  }
  return {};
}

}  // namespace tessera::collective
