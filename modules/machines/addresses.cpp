// The addresses of this machine at which it listens.
module;
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.machines;

import tessera.base;
import :sockets;

namespace tessera::collective {
namespace {

constexpr const char* interface_variable = "TESSERA_INTERFACE";

std::vector<std::string> loopback_addresses() { return {"127.0.0.1", "::1"}; }

bool is_any(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

bool is_numeric(const std::string& host) {
  in6_addr room{};
  return inet_pton(AF_INET, host.c_str(), &room) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &room) == 1;
}

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(),
              text.size());
  } else {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(),
              text.size());
  }
  return text.data();
}

bool is_usable(const sockaddr* address) {
  return address != nullptr &&
         (address->sa_family == AF_INET ||
          (address->sa_family == AF_INET6 &&  // one of a link alone needs its interface too
           !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)));
}

/// The interfaces of this machine that are up, each with an address; those of version 4 first.
std::vector<std::pair<std::string, std::string>> own_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    fail({.thing = "launch",
          .wrong = fmt::format("cannot list the network interfaces ({})", std::strerror(errno))});
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(list, freeifaddrs);
  std::vector<std::pair<std::string, std::string>> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if ((at->ifa_flags & IFF_UP) != 0 && is_usable(at->ifa_addr) &&
          at->ifa_addr->sa_family == family) {
        found.emplace_back(at->ifa_name, text_of(at->ifa_addr));
      }
    }
  }
  return found;
}

/// The addresses of an interface, by its name or by one of its addresses; an empty list: all.
std::vector<std::string> interface_addresses(const std::string& thing, const std::string& name) {
  std::vector<std::string> addresses;
  if (is_any(name)) {
    return addresses;
  }
  std::vector<std::string> known;
  for (const auto& [interface, address] : own_interfaces()) {
    if (name == address) {
      return {address};
    }
    if (name == interface) {
      addresses.push_back(address);
    }
    known.push_back(fmt::format("{} ({})", interface, address));
  }
  if (addresses.empty()) {
    fail_input({.thing = thing,
                .wrong = fmt::format("this machine has no interface or address '{}'", shown(name)),
                .expected = fmt::format("one of {}", fmt::join(known, ", "))});
  }
  return addresses;
}

/// That of use_interface.
std::string& used_interface() {
  static std::string name;
  return name;
}

/// Those that TESSERA_INTERFACE or use_interface names.
std::optional<std::vector<std::string>> chosen_addresses() {
  const std::string interface = environment_variable(interface_variable).value_or(used_interface());
  return interface.empty() ? std::nullopt
                           : std::optional(interface_addresses("mesh.interface", interface));
}

std::vector<std::string> addresses_of_name(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    fail_input(
        {.thing = "--meet",
         .wrong = fmt::format("the host '{}' is not known: {}", shown(host), gai_strerror(error))});
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(list, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (is_usable(at->ai_addr)) {
      addresses.push_back(text_of(at->ai_addr));
    }
  }
  return addresses;
}

}  // namespace

bool is_local_host(const std::string& host) {
  return host == "localhost" || (is_numeric(host) && is_loopback({host, 0}));
}

std::vector<std::string> meeting_addresses(const std::string& host) {
  if (host == "localhost") {
    return loopback_addresses();
  }
  if (is_numeric(host)) {
    return is_any(host) ? std::vector<std::string>{} : std::vector{host};
  }
  std::vector<std::string> addresses = addresses_of_name(host);
  std::erase_if(addresses, [](const auto& address) { return is_loopback({address, 0}); });
  return addresses.empty() ? chosen_addresses().value_or(std::vector<std::string>{}) : addresses;
}

std::vector<std::string> addresses_beside(const std::string& own_address, const std::string& host) {
  if (auto chosen = chosen_addresses()) {
    return *std::move(chosen);
  }
  if (own_address.empty()) {
    return meeting_addresses(host);
  }
  if (!is_loopback({own_address, 0})) {
    return {own_address};
  }
  return is_local_host(host) ? loopback_addresses() : std::vector<std::string>{};
}

std::string announced_address() {
  const auto chosen = chosen_addresses();
  return chosen && !chosen->empty() ? chosen->front() : "";
}

void use_interface(const std::string& name) { used_interface() = name; }

void check_interface(const std::string& thing, const std::string& name) {
  interface_addresses(thing, name);
}

}  // namespace tessera::collective
