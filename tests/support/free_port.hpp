// A port of this machine that was free a moment ago.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "catch.hpp"

namespace tessera::testing {

inline int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  REQUIRE(bind(socket, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes);
  close(socket);
  return ntohs(address.sin_port);
}

}  // namespace tessera::testing
