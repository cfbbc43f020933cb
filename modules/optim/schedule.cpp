module;
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string_view>
module tessera.optim;

namespace tessera::optim {

std::optional<ScheduleKind> schedule_from_name(std::string_view name) {
  if (name == "constant") {
    return ScheduleKind::constant;
  }
  if (name == "cosine") {
    return ScheduleKind::cosine;
  }
  if (name == "linear") {
    return ScheduleKind::linear;
  }
  return std::nullopt;
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  const double minimum = lr * min_ratio;
  const double t =
      std::min(1.0, static_cast<double>(step - warmup) /
                        static_cast<double>(std::max<std::int64_t>(1, steps - warmup)));
  switch (kind) {
    case ScheduleKind::constant:
      return lr;
    case ScheduleKind::cosine:
      return minimum + (lr - minimum) * 0.5 * (1 + std::cos(std::numbers::pi * t));
    case ScheduleKind::linear:
      return minimum + (lr - minimum) * (1 - t);
  }
  return lr;
}

}  // namespace tessera::optim
