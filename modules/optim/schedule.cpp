module;
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>
module tessera.optim;

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

bool Schedule::has_end() const {
  return kind != ScheduleKind::constant && kind != ScheduleKind::inverse_sqrt;
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
    case ScheduleKind::warmup_stable_decay: {
      const std::int64_t left = std::clamp<std::int64_t>(steps - step, 0, decay_steps);
      return decay_steps == 0 ? lr
                              : minimum + (lr - minimum) * static_cast<double>(left) /
                                              static_cast<double>(decay_steps);
    }
    case ScheduleKind::inverse_sqrt: {
      const auto reached = static_cast<double>(std::max<std::int64_t>(1, warmup));
      return std::max(minimum, lr * std::sqrt(reached / static_cast<double>(step + 1)));
    }
  }
  return lr;
}

}  // namespace tessera::optim
