module;
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/log_listener.hpp>
#include <tessera/shown.hpp>
module tessera.base;

namespace tessera {
namespace {

std::atomic<int>& rank_slot() {
  static std::atomic<int> rank{-1};
  return rank;
}

spdlog::logger& logger() {
  // Leaked: lines may be written while statics are destroyed.
  static auto* instance = [] {
    const auto mode = colour_on_stderr() ? spdlog::color_mode::always : spdlog::color_mode::never;
    auto* made = new spdlog::logger(
        "tessera", std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(mode));
    made->set_pattern("%^%l%$: %v");
    const std::string wanted = environment_variable("TESSERA_LOG").value_or("warning");
    made->set_level(spdlog::level::from_str(wanted));
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void log(LogLevel level, std::string_view text) {
  const std::string shown_text = terminal_text(text);  // it may be of a file or a machine
  const int rank = rank_slot();
  if (rank > 0 && level < LogLevel::warning) {
    return;
  }
  if (logger().should_log(to_spdlog(level))) {
    tell_log_listeners({.level = static_cast<int>(level), .text = shown_text});
  }
  if (rank >= 0) {
    logger().log(to_spdlog(level), "[rank {}] {}", rank, shown_text);
  } else {
    logger().log(to_spdlog(level), "{}", shown_text);
  }
}

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void set_log_rank(int rank) { rank_slot() = rank; }

}  // namespace tessera
