module;
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/limits.hpp>
#include <tessera/protobuf.hpp>
module tessera.runs;

import tessera.base;

namespace tessera::runs {
namespace {

// Numbers of fields in tensorflow's event.proto and summary.proto.
namespace event_proto {
constexpr std::uint32_t wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
constexpr std::uint32_t status = 1;  // of a SessionLog
constexpr std::int64_t start = 1;    // readers leave out earlier events of this step and later ones
constexpr std::uint32_t value = 1;   // of a Summary
constexpr std::uint32_t tag = 1, simple_value = 2;
}  // namespace event_proto

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1U) != 0 ? crc >> 1U ^ 0x82f63b78U : crc >> 1U;
    }
    table[i] = crc;
  }
  return table;
}();

/// As records have it: data that contain their own checksums keep useful ones.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return (crc >> 15U | crc << 17U) + 0xa282ead8U;
}

template <class T>
std::string plain(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string record(const std::string& event) {
  const std::string length = plain(std::uint64_t{event.size()});
  return length + plain(masked_crc(length)) + event + plain(masked_crc(event));
}

std::string event_of(std::int64_t step) {
  std::string event;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  protobuf::add_plain(event, event_proto::wall_time, std::chrono::duration<double>(now).count());
  protobuf::add_integer(event, event_proto::step, step);
  return event;
}

void add_scalar(std::string& summary, std::string_view tag, double number) {
  if (!std::isfinite(number)) {
    return;
  }
  std::string value;
  protobuf::add_bytes(value, event_proto::tag, tag);
  protobuf::add_plain(value, event_proto::simple_value, static_cast<float>(number));
  protobuf::add_bytes(summary, event_proto::value, value);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = crc_table[(crc ^ static_cast<unsigned char>(byte)) & 0xffU] ^ crc >> 8U;
  }
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t resumed_step) {
  make_folders(folder.string(), "log.tensorboard");
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  constexpr int most_tries = 100;
  for (int i = 0; i < most_tries && file_ < 0; ++i) {
    path_ = folder /
            fmt::format("events.out.tfevents.{:010}.{}.{}.{}", seconds, host.data(), ::getpid(), i);
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) {
      break;
    }
  }
  if (file_ < 0) {
    fail_input({.thing = "log.tensorboard",
                .wrong = fmt::format("{} cannot be written: {}", path_.string(), reason_of(errno)),
                .advice = "name another folder"});
  }
  std::string first = event_of(0);
  protobuf::add_bytes(first, event_proto::file_version, "brain.Event:2");
  add(first);
  if (resumed_step > 0) {
    std::string start = event_of(resumed_step + 1);
    std::string log;
    protobuf::add_integer(log, event_proto::status, event_proto::start);
    protobuf::add_bytes(start, event_proto::session_log, log);
    add(start);
  }
  flush();
}

EventFile::~EventFile() { ::close(file_); }

void EventFile::add(const std::string& event) { pending_ += record(event); }

void EventFile::flush() {
  while (!pending_.empty()) {
    const ssize_t count = ::write(file_, pending_.data(), pending_.size());
    if (count < 0 && errno != EINTR) {
      fail({.thing = "log.tensorboard",
            .wrong = fmt::format("{} cannot be written: {}", path_.string(), reason_of(errno))});
    }
    // What a full disk has cut is written from there on.
    pending_.erase(0, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
}

void EventFile::write(const StepMetrics& m) {
  std::string summary;
  for (const auto& [name, value] : scalars_of(m)) {
    add_scalar(summary, name, value);
  }
  std::string event = event_of(m.step);
  protobuf::add_bytes(event, event_proto::summary, summary);
  add(event);
  flush();
}

}  // namespace tessera::runs
