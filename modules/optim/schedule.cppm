export module tessera.optim:schedule;

import tessera.base;

export namespace tessera::optim {

enum class ScheduleKind : std::uint8_t { constant, cosine, linear };
std::optional<ScheduleKind> schedule_from_name(std::string_view name);

/// The learning rate of each step, counted from 0. Warmup: lr (s + 1) / warmup for s < warmup.
/// Then, with t = (s - warmup) / (steps - warmup), at most 1, and min = lr * min_ratio: constant
/// lr; cosine min + (lr - min) (1 + cos(pi t)) / 2; linear min + (lr - min) (1 - t).
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0;
  std::int64_t warmup = 0;
  std::int64_t steps = 0;
  double min_ratio = 0.1;

  double at(std::int64_t step) const;
};

}  // namespace tessera::optim
