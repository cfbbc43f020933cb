module tessera.program:line;

import tessera.base;

namespace tessera {

/// Rest of a line of a program's text. Errors (input) say what is expected and what is
/// there.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  bool ended() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }
  bool take(std::string_view literal);
  void expect(std::string_view literal);
  /// Up to `end`, which is taken too.
  std::string_view until(std::string_view end);
  std::string_view all();
  /// T: int, std::int64_t, std::uint64_t or double.
  template <class T>
  T number();
  /// Error: something is left.
  void end() const;
  [[noreturn]] void refuse(std::string expected) const;
  /// Checks the first line. Error: it is not a program's, or one of another version of the format.
  void check_version();

 private:
  std::string_view shown() const;

  std::string_view rest_;
};

}  // namespace tessera
