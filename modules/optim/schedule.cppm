export module tessera.optim:schedule;

import tessera.base;

export namespace tessera::optim {

enum class ScheduleKind : std::uint8_t {
  constant,
  cosine,
  linear,
  warmup_stable_decay,
  inverse_sqrt
};
/// "constant", "cosine", "linear", "wsd", "inverse_sqrt".
std::optional<ScheduleKind> schedule_from_name(std::string_view name);

/// The learning rate of each step s, counted from 0. Warmup: lr (s + 1) / warmup for s < warmup.
/// Then, with t = (s - warmup) / (steps - warmup), at most 1, and min = lr * min_ratio:
/// - constant: lr
/// - cosine: min + (lr - min) (1 + cos(pi t)) / 2
/// - linear: min + (lr - min) (1 - t)
/// - warmup_stable_decay: lr, and in the last decay_steps min + (lr - min) (steps - s) /
///   decay_steps, at least min
/// - inverse_sqrt: lr sqrt(w / (s + 1)) with w = max(1, warmup), at least min
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0;
  std::int64_t warmup = 0;
  std::int64_t steps = 0;
  double min_ratio = 0.1;
  std::int64_t decay_steps = 0;

  double at(std::int64_t step) const;
  /// Whether the rates depend on `steps`.
  bool has_end() const;
};

}  // namespace tessera::optim
