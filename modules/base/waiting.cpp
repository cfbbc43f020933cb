module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
module tessera.base;

namespace tessera {

double wait_limit() {
  if (const auto text = environment_variable("TESSERA_TIMEOUT")) {
    char* end = nullptr;
    const double seconds = std::strtod(text->c_str(), &end);
    if (*end != '\0' || !(seconds > 0)) {
      fail_input({.thing = "TESSERA_TIMEOUT",
                  .wrong = "must be a time",
                  .expected = "seconds above 0",
                  .got = fmt::format("'{}'", *text)});
    }
    return seconds;
  }
  return 300;
}

Stopwatch::Stopwatch() : last_(std::chrono::steady_clock::now()) {}

double Stopwatch::waited() {
  constexpr double longest_look = 1;
  const auto now = std::chrono::steady_clock::now();
  waited_ += std::min(longest_look, std::chrono::duration<double>(now - last_).count());
  last_ = now;
  return waited_;
}

void Patience::report(double waited, std::string_view what, std::string_view then) {
  reported_ = true;
  log(LogLevel::warning,
      fmt::format("{} (waited for {:.0f} s; {} after {:.4g} s)", what, waited, then, limit_));
}

void Pause::sleep() {
  std::this_thread::sleep_for(std::chrono::duration<double>(next_));
  next_ = std::min(longest_, 1.5 * next_);
}

}  // namespace tessera
