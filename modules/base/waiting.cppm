export module tessera.base:waiting;

import :standard;

export namespace tessera {

/// Limit of every wait, in seconds: TESSERA_TIMEOUT, else 300. Error (input): not a time.
double wait_limit();

/// Measures a wait. Only time in which this process was running counts: after Ctrl-Z and `fg`
/// nobody has waited longer than before. Call waited() at least every half second.
class Stopwatch {
 public:
  Stopwatch();
  double waited();

 private:
  std::chrono::time_point<std::chrono::steady_clock> last_;
  double waited_ = 0;
};

/// How long to wait for something that others do. Every wait has one, so every wait has an end and
/// says what it waits for.
class Patience {
 public:
  /// Seconds after which a wait is reported.
  static constexpr double reported_after = 2;

  explicit Patience(double limit = wait_limit(), double report_after = reported_after)
      : limit_(limit), report_after_(report_after) {}

  /// Call it in every round of the wait, at least every half second. Returns whether to wait on:
  /// false after the limit. `what()` is the text of the report, evaluated only for it: who waits
  /// for whom ("launch: rank 3 has not joined"); `then` is what happens after the limit ("fails").
  template <class What>
  bool look(const What& what, std::string_view then = "fails") {
    const double waited = watch_.waited();
    if (is_due(waited)) {
      report(waited, what(), then);
    }
    return waited <= limit_;
  }
  /// For a wait with a report of its own: whether it is time for the report,
  /// true until reported() was called.
  inline bool is_due(double waited) const { return !reported_ && waited > report_after_; }
  inline void reported() { reported_ = true; }
  inline double waited() { return watch_.waited(); }
  inline double limit() const { return limit_; }

 private:
  void report(double waited, std::string_view what, std::string_view then);

  Stopwatch watch_;
  double limit_;
  double report_after_;
  bool reported_ = false;
};

/// The pause before the next look at something that cannot wake this process: short at first, at
/// most `longest` seconds.
class Pause {
 public:
  explicit Pause(double longest = 0.05) : longest_(longest) {}
  void sleep();

 private:
  double longest_;
  double next_ = 0.0005;
};

}  // namespace tessera
