module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
module tessera.optim;

import tessera.base;

namespace tessera::optim {

std::optional<ScheduleKind> schedule_from_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, ScheduleKind>, 5> kinds = {
      {{"constant", ScheduleKind::constant},
       {"cosine", ScheduleKind::cosine},
       {"linear", ScheduleKind::linear},
       {"wsd", ScheduleKind::warmup_stable_decay},
       {"inverse_sqrt", ScheduleKind::inverse_sqrt}}};
  const auto* const found =
      std::ranges::find(kinds, name, &std::pair<std::string_view, ScheduleKind>::first);
  return found == kinds.end() ? std::nullopt : std::optional(found->second);
}

std::optional<ScheduleUnit> schedule_unit_from_name(std::string_view name) {
  return name == "steps"    ? std::optional(ScheduleUnit::steps)
         : name == "tokens" ? std::optional(ScheduleUnit::tokens)
                            : std::nullopt;
}

bool Schedule::has_end() const {
  return kind != ScheduleKind::constant && kind != ScheduleKind::inverse_sqrt;
}

void Schedule::check() const {
  const auto refuse = [](const char* what, const std::string& expected, const std::string& got) {
    fail_input({.thing = "schedule", .wrong = what, .expected = expected, .got = got});
  };
  if (!std::isfinite(lr) || lr < 0) {
    refuse("lr is not a learning rate", "at least 0 and finite", fmt::format("{}", lr));
  }
  if (!(min_ratio >= 0 && min_ratio <= 1)) {
    refuse("min_ratio is not a share of lr", "0 to 1", fmt::format("{}", min_ratio));
  }
  if (warmup < 0) {
    refuse("warmup is negative", "at least 0", fmt::format("{}", warmup));
  }
  if (has_end() && end < warmup) {
    refuse("it ends before its warmup is over", fmt::format("an end of at least {}", warmup),
           fmt::format("{}", end));
  }
  if (kind == ScheduleKind::warmup_stable_decay && (cooldown < 0 || cooldown > end - warmup)) {
    refuse("cooldown does not fit between warmup and end", fmt::format("0 to {}", end - warmup),
           fmt::format("{}", cooldown));
  }
}

double Schedule::at(std::int64_t done, std::int64_t size) const {
  const auto after = static_cast<double>(done + size);
  if (done < warmup) {
    return lr * std::min(1.0, after / static_cast<double>(warmup));
  }
  const double minimum = lr * min_ratio;
  const double t = std::min(1.0, static_cast<double>(done - warmup) /
                                     static_cast<double>(std::max<std::int64_t>(1, end - warmup)));
  switch (kind) {
    case ScheduleKind::constant:
      return lr;
    case ScheduleKind::cosine:
      return minimum + (lr - minimum) * 0.5 * (1 + std::cos(std::numbers::pi * t));
    case ScheduleKind::linear:
      return minimum + (lr - minimum) * (1 - t);
    case ScheduleKind::warmup_stable_decay: {
      const std::int64_t left = std::clamp<std::int64_t>(end - done, 0, cooldown);
      return cooldown == 0 ? lr
                           : minimum + (lr - minimum) * static_cast<double>(left) /
                                           static_cast<double>(cooldown);
    }
    case ScheduleKind::inverse_sqrt: {
      const auto reached = static_cast<double>(std::max(size, warmup));
      return std::max(minimum, lr * std::sqrt(reached / after));
    }
  }
  return lr;
}

}  // namespace tessera::optim
