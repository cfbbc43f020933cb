export module tessera.runs:problems;

import tessera.base;

// Collects everything that is wrong with a config, to report it at once.

export namespace tessera::runs {

/// Where a value was given: a line of a file, or an argument of the command line (line 0).
struct SourceLine {
  std::string source;
  int line = 0;
  /// "run.toml:12", or the source alone.
  std::string text() const;
};

/// Everything that is wrong with a description, for one error.
class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}
  void add(SourceLine place, std::string text);
  /// For a problem that is not on a single line.
  void add(std::string text) { add({file_, 0}, std::move(text)); }
  std::size_t size() const { return all_.size(); }
  /// Throws one Error (input) that lists every problem, in the order of their lines.
  void throw_if_any();

 private:
  struct Problem {
    SourceLine place;
    std::string text;
  };
  std::string file_;
  std::vector<Problem> all_;
};

}  // namespace tessera::runs
