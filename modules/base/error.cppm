export module tessera.base:error;

import :standard;

export namespace tessera {

/// Who has to act. The program's exit code follows from it: input -> 2, run -> 1, interrupted ->
/// 130.
enum class ErrorKind { input, run, interrupted };

/// The one error family. Text: `<op or thing>: what is wrong (expected X, got Y); what to do`.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text, ErrorKind kind = ErrorKind::run);
  ErrorKind kind() const noexcept;

 private:
  ErrorKind kind_;
};

/// Throws an Error of kind run: something failed while the program ran.
[[noreturn]] void fail(const std::string& text);

/// Throws an Error of kind input: the user's config, files or arguments are wrong.
[[noreturn]] void fail_input(const std::string& text);

/// Throws an Error of kind run unless `condition` holds; for invariants whose text is fixed.
inline void require(bool condition, std::string_view text) {
  if (!condition) [[unlikely]] {
    fail(std::string(text));
  }
}

}  // namespace tessera
