module tessera.grammar:text_pattern;

import tessera.base;
import :expression;

// Parts of patterns and grammars as text.

namespace tessera::grammar {

/// Reads a text in UTF-8, character by character.
class CharacterReader {
 public:
  /// Error (input) that begins with `name`: it is not UTF-8.
  CharacterReader(std::string_view text, std::string name);

  bool at_end() const { return next_ == characters_.size(); }
  char32_t peek(std::size_t further = 0) const {
    return next_ + further < characters_.size() ? characters_[next_ + further] : 0;
  }
  char32_t take() { return next_ < characters_.size() ? characters_[next_++] : 0; }
  bool take_if(char32_t character);
  /// So many hexadecimal digits.
  char32_t take_hex(int digits);
  /// A whole number; none: there is no digit.
  std::optional<std::int64_t> take_number();
  std::size_t line() const;
  [[noreturn]] void refuse(const std::string& wrong) const;

 private:
  std::string name_;
  std::vector<char32_t> characters_;
  std::size_t next_ = 0;
};

/// What follows a part as "*", "+", "?" or "{m,n}": the part so many times.
Expression repeated(CharacterReader& reader, Expression part);

/// The characters of a JSON text that stand for one of these: itself, or escaped.
Expression json_characters(const std::vector<CharacterRange>& ranges);

/// The contents of JSON texts that match a regular expression (docs/serving.md has what it may
/// consist of). `name` begins the errors. Error (input): it is none, or has something else.
Expression json_pattern(std::string_view pattern, const std::string& name);

}  // namespace tessera::grammar
