export module tessera.optim:schedule;

import tessera.base;

export namespace tessera::optim {

/// Curves of the learning rate.
enum class ScheduleKind : std::uint8_t {
  constant,
  cosine,
  linear,
  warmup_stable_decay,
  inverse_sqrt
};
/// "constant", "cosine", "linear", "wsd", "inverse_sqrt".
std::optional<ScheduleKind> schedule_from_name(std::string_view name);

/// Unit that a schedule counts.
enum class ScheduleUnit : std::uint8_t { steps, tokens };
/// "steps", "tokens".
std::optional<ScheduleUnit> schedule_unit_from_name(std::string_view name);

/// The learning rate of each step. In the schedule's unit, a step begins at `done` and has the size
/// `n`: by steps, done is its number (from 0) and n = 1; by tokens, done is the number of tokens of
/// all steps before, and n that of the step. Both units have the same rates where all steps have
/// equally many tokens and warmup, end and cooldown are whole steps of them.
/// Warmup: lr (done + n) / warmup, at most lr, while done < warmup. Then, with
/// t = (done - warmup) / (end - warmup), at most 1, and min = lr * min_ratio:
/// - constant: lr
/// - cosine: min + (lr - min) (1 + cos(pi t)) / 2
/// - linear: min + (lr - min) (1 - t)
/// - warmup_stable_decay: lr, and in the last `cooldown` before the end
///   min + (lr - min) (end - done) / cooldown, at least min
/// - inverse_sqrt: lr sqrt(w / (done + n)) with w = max(n, warmup), at least min
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 0;
  ScheduleUnit unit = ScheduleUnit::steps;
  std::int64_t warmup = 0;
  std::int64_t end = 0;
  double min_ratio = 0.1;
  std::int64_t cooldown = 0;

  double at(std::int64_t done, std::int64_t size = 1) const;
  /// Whether the rates depend on `end`.
  bool has_end() const;
  /// Error (input): a number that no schedule has, an end before the warmup is over, a cooldown
  /// that does not fit in between.
  void check() const;
};

}  // namespace tessera::optim
