// What rendering a chat template may cost: templates come with models, so they are not trusted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::data::jinja {

/// An operation that a template does with values that do not allow it, or a limit that it reaches;
/// whoever knows the line adds it.
struct Problem : std::runtime_error {
  explicit Problem(const std::string& wrong, std::string what_to_do = {})
      : std::runtime_error(wrong), advice(std::move(what_to_do)) {}
  std::string advice;
};

struct Limits {
  std::int64_t steps = 20'000'000;                // of evaluation; 16 bytes of a text are a step
  std::size_t memory = std::size_t{64} << 20;     // of the values that exist at the same time
  std::size_t text = std::size_t{64} << 20;       // of the text that is written
  int levels = 300;                               // of tags, expressions and macros in each other
  static constexpr int depth = 100;               // of values within each other
  static constexpr std::int64_t range = 100'000;  // as Jinja's sandbox
};

/// Everything that repeats, grows or nests while a template is rendered is charged here. Problem:
/// a limit is reached.
class Budget {
 public:
  explicit Budget(const Limits& limits = {}) : limits_(limits), steps_(limits.steps) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  std::int64_t steps_taken() const { return limits_.steps - steps_; }
  void step(std::size_t count = 1) {
    steps_ -= static_cast<std::int64_t>(count);
    if (steps_ < 0) [[unlikely]] {
      out_of_steps();
    }
  }
  /// The work of going through `bytes` of a text.
  void read(std::size_t bytes) { step(1 + bytes / 16); }
  /// Whether values of so many bytes more would still be within the limit.
  void check_room(std::size_t bytes) const {
    if (bytes > limits_.memory - memory_) [[unlikely]] {
      out_of_memory();
    }
  }
  void take(std::size_t bytes) {
    check_room(bytes);
    memory_ += bytes;
  }
  void give_back(std::size_t bytes) noexcept { memory_ -= bytes; }
  void check_written(std::size_t bytes) const;

  /// One level further down, until it is destroyed.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.level_ > budget_.limits_.levels) [[unlikely]] {
        --budget_.level_;
        budget_.too_deep();
      }
    }
    ~Level() { --budget_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  [[noreturn]] void out_of_steps() const;
  [[noreturn]] void out_of_memory() const;
  [[noreturn]] void too_deep() const;

  Limits limits_;
  std::int64_t steps_;
  std::size_t memory_ = 0;
  int level_ = 0;
};

/// A text that grows by parts, within the budget.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}
  void add(std::string_view part) {
    budget_.read(part.size());
    budget_.check_room(text_.size() + part.size());
    text_ += part;
  }
  void add(char c) { add(std::string_view(&c, 1)); }
  /// `count` times `c`.
  void fill(std::size_t count, char c) {
    budget_.read(count);
    budget_.check_room(text_.size() + count);
    text_.append(count, c);
  }
  Budget& budget() { return budget_; }
  std::string take() { return std::move(text_); }

 private:
  Budget& budget_;
  std::string text_;
};

}  // namespace tessera::data::jinja
