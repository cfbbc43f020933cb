// What those who have proven the run's key send each other, with checksums.
module;
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
module tessera.machines;

import tessera.base;
import :proof;
import :sockets;
import :streams;

namespace tessera::collective {
namespace {

constexpr std::size_t length_bytes = sizeof(std::uint32_t);
constexpr std::size_t most_waiting = std::size_t{64}
                                     << 20;  // bytes that the other end does not read

/// Moves all bytes, by `some(at, bytes)` as send() and recv().
template <class Byte, class Some>
bool move_all(const Socket& socket, std::span<Byte> bytes, short event, const Some& some,
              Checksum* checksum, const GoOn& go_on) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  while (!bytes.empty()) {
    const ssize_t moved = some(bytes.data(), std::min(bytes.size(), piece));
    if (moved > 0) {
      if (checksum != nullptr) {
        checksum->add(bytes.data(), static_cast<std::size_t>(moved));
      }
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else {
      pollfd waiting{socket.descriptor(), event, 0};
      poll(&waiting, 1, 50);
    }
    if (!go_on()) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool send_sealed(ProvenLink& link, std::span<const std::span<const std::byte>> places,
                 const GoOn& go_on) {
  const auto some = [&](const std::byte* at, std::size_t size) {
    return ::send(link.socket.descriptor(), at, size, MSG_NOSIGNAL);
  };
  Checksum checksum = link.out.next();
  for (const std::span<const std::byte> bytes : places) {
    if (!move_all(link.socket, bytes, POLLOUT, some, &checksum, go_on)) {
      return false;
    }
  }
  const Checksum::Tag tag = checksum.tag();
  return move_all(link.socket, std::span<const std::byte>(tag), POLLOUT, some, nullptr, go_on);
}

bool receive_sealed(ProvenLink& link, std::span<const std::span<std::byte>> places,
                    const GoOn& go_on) {
  const auto some = [&](std::byte* at, std::size_t size) {
    return ::recv(link.socket.descriptor(), at, size, 0);
  };
  Checksum checksum = link.in.next();
  for (const std::span<std::byte> bytes : places) {
    if (!move_all(link.socket, bytes, POLLIN, some, &checksum, go_on)) {
      return false;
    }
  }
  Checksum::Tag tag{};
  if (!move_all(link.socket, std::span<std::byte>(tag), POLLIN, some, nullptr, go_on)) {
    return false;
  }
  require(checksum.is(tag), "what came was changed on the way: its checksum is wrong");
  return true;
}

MessageStream::MessageStream(ProvenLink link, std::size_t longest)
    : host_(link.socket.other_end().host), link_(std::move(link)), longest_(longest) {}

void MessageStream::send(std::string_view message) {
  if (out_.size() > most_waiting) {
    end("it does not read what is sent");
  }
  if (!link_.socket.open()) {
    return;
  }
  const auto length = static_cast<std::uint32_t>(message.size());
  Checksum checksum = link_.out.next();
  checksum.add(&length, length_bytes);
  checksum.add(message.data(), message.size());
  const Checksum::Tag tag = checksum.tag();
  out_.append(reinterpret_cast<const char*>(&length), length_bytes);
  out_.append(message);
  out_.append(reinterpret_cast<const char*>(tag.data()), tag.size());
}

void MessageStream::end(std::string_view why) {
  why_ = why;
  out_.clear();
  link_.socket.close();
}

bool MessageStream::progress() {
  const Socket& socket = link_.socket;
  while (socket.open() && !out_.empty()) {
    const ssize_t sent = ::send(socket.descriptor(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      out_.erase(0, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EINTR) {
      break;
    } else {
      end(std::strerror(errno));
    }
  }
  std::array<char, 65536> room{};
  while (socket.open() && in_.size() < longest_ + length_bytes + Checksum::size) {
    const ssize_t got = recv(socket.descriptor(), room.data(), room.size(), 0);
    if (got > 0) {
      in_.append(room.data(), static_cast<std::size_t>(got));
    } else if (got == 0) {
      end("the connection was closed");
    } else if (errno == EAGAIN || errno == EINTR) {
      break;
    } else {
      end(std::strerror(errno));
    }
  }
  return socket.open();
}

std::optional<std::string> MessageStream::receive() {
  std::uint32_t length = 0;
  if (in_.size() < length_bytes) {
    return std::nullopt;
  }
  std::memcpy(&length, in_.data(), length_bytes);
  if (length > longest_) {
    end("a message was changed on the way: it is too long");
    in_.clear();
    return std::nullopt;
  }
  const std::size_t all = length_bytes + length + Checksum::size;
  if (in_.size() < all) {
    return std::nullopt;
  }
  Checksum::Tag tag{};
  std::memcpy(tag.data(), in_.data() + length_bytes + length, tag.size());
  Checksum checksum = link_.in.next();
  checksum.add(in_.data(), length_bytes + length);
  if (!checksum.is(tag)) {
    end("a message was changed on the way: its checksum is wrong");
    log(LogLevel::warning, fmt::format("the link with {}: {}", host_, why_));
    in_.clear();
    return std::nullopt;
  }
  std::string message = in_.substr(length_bytes, length);
  in_.erase(0, all);
  return message;
}

}  // namespace tessera::collective
