export module tessera.base:error;

import :standard;

export namespace tessera {

/// Who has to act.
enum class ErrorKind { input, run, interrupted };
/// The exit code of a program that ends with such an error: input -> 2, run -> 1, interrupted ->
/// 130.
int exit_code_of(ErrorKind kind);

/// An error's statements, in parts, for code that decides by one of them. An empty part is left out
/// of the text.
struct ErrorFields {
  std::string where = {};     // the place that asks for it: "run.toml:12"
  std::string thing = {};     // what it is about: an operator, a function, a key, a file
  std::string wrong = {};     // what is wrong with it
  std::string expected = {};  // what would be right
  std::string got = {};
  std::string advice = {};   // what to do
  std::string details = {};  // further lines: a table, what was at work
  /// The qualified name of the innermost module in whose forward or backward it was raised; empty
  /// for the root.
  std::optional<std::string> module = {};
  bool backward = false;
  int rank = -1;  // whose error stopped the run; -1: this rank's own
};
/// "where: module 'm', backward: thing: wrong (expected X, got Y); advice", and the details below.
std::string to_string(const ErrorFields& fields);

/// The one error family. what() is the text of its fields.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorFields fields, ErrorKind kind = ErrorKind::run);
  /// A text that has no parts: it is fields().wrong.
  explicit Error(const std::string& text, ErrorKind kind = ErrorKind::run);
  ErrorKind kind() const noexcept;
  const ErrorFields& fields() const noexcept;

 private:
  ErrorKind kind_;
  std::shared_ptr<const ErrorFields> fields_;  // so that a copy does not throw
};

/// Throws an Error of kind run: something failed while the program ran.
[[noreturn]] void fail(const std::string& text);
[[noreturn]] void fail(ErrorFields fields);

/// Throws an Error of kind input: the user's config, files or arguments are wrong.
[[noreturn]] void fail_input(const std::string& text);
[[noreturn]] void fail_input(ErrorFields fields);
/// Throws `error` on as one of the user's input, with the place that asks for what failed, unless
/// it has one.
[[noreturn]] void fail_at(const std::string& where, const Error& error);

/// Throws an Error of kind run unless `condition` holds; for invariants whose text is fixed.
inline void require(bool condition, std::string_view text) {
  if (!condition) [[unlikely]] {
    fail(std::string(text));
  }
}

}  // namespace tessera
