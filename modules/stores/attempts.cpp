module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <utility>
module tessera.stores;

import tessera.base;
import :attempts;

namespace tessera::stores {

void sleep_unless_cancelled(double seconds, const RequestLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    if (limits.cancelled && limits.cancelled()) {
      throw StoreError(StoreFailure::cancelled, {.wrong = "interrupted"});
    }
    const std::chrono::duration<double> left = end - Clock::now();
    if (left.count() <= 0) {
      return;
    }
    constexpr double look = 0.1;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left.count(), look)));
  }
}

void Attempts::after(const StoreError& failure) {
  const RetryPolicy& policy = rules_.retries;
  if (failure.failure() != StoreFailure::temporary) {
    throw failure;
  }
  ++failures_;
  if (!watch_) {
    watch_.emplace();
  }
  // Half of the pause is at random, so that ranks that failed together do not come back together.
  const double share =
      0.5 + 0.5 * static_cast<double>(std::random_device{}()) / std::random_device::max();
  const double pause = std::max(
      share * std::min(policy.longest_pause, policy.first_pause * std::pow(2.0, failures_ - 1)),
      failure.after());
  const double waited = watch_->waited();
  std::string why;
  if (failures_ >= policy.tries) {
    why = fmt::format("it was tried {}",
                      failures_ == 1 ? "once" : fmt::format("{} times", failures_));
  } else if (failure.after() > policy.longest_asked) {
    why =
        fmt::format("the store wants to be asked again after {}", format_duration(failure.after()));
  } else if (waited + pause > policy.all_seconds) {
    why = fmt::format("it was tried {} in {}", count_text(failures_, "time"),
                      format_duration(waited));
  }
  if (!why.empty()) {
    ErrorFields fields = failure.fields();
    fields.wrong += fmt::format(" ({})", why);
    throw StoreError(StoreFailure::temporary, std::move(fields), failure.after());
  }
  sleep_unless_cancelled(pause, rules_.limits);
}

}  // namespace tessera::stores
