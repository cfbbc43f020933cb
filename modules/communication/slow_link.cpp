// A link that is slowed for tests.
module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
module tessera.communication;

import tessera.base;
import :state;

namespace tessera::collective {
namespace {

constexpr const char* variable = "TESSERA_LINK";

[[noreturn]] void refuse(const std::string& text) {
  fail_input({.thing = variable,
              .wrong = "it is not the speed of a link",
              .expected = "'latency_us=100,bandwidth_gb=0.5', with numbers above 0",
              .got = fmt::format("'{}'", text)});
}

}  // namespace

std::unique_ptr<SlowLink> SlowLink::from_environment() {
  const std::optional<std::string> text = environment_variable(variable);
  if (!text) {
    return nullptr;
  }
  double latency_us = 0;
  double bandwidth_gb = 0;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const auto equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    double* const place = key == "latency_us"     ? &latency_us
                          : key == "bandwidth_gb" ? &bandwidth_gb
                                                  : nullptr;
    if (place == nullptr) {
      refuse(*text);
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *place);
    if (error != std::errc() || end != value.data() + value.size()) {
      refuse(*text);
    }
  }
  if (!(latency_us > 0) || !(bandwidth_gb > 0)) {
    refuse(*text);
  }
  return std::make_unique<SlowLink>(latency_us * 1e-6, bandwidth_gb * 1e9);
}

std::int64_t SlowLink::arrival(std::int64_t issued, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const double seconds = latency_ + static_cast<double>(bytes) / bytes_per_second_;
  free_at_ = std::max(issued, free_at_) + static_cast<std::int64_t>(seconds * 1e9);
  return free_at_;
}

}  // namespace tessera::collective
