// The tokens of a chat template.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.hpp"

namespace tessera::data::jinja {

enum class TokenKind : std::uint8_t {
  data,         // text outside of {{ }} and {% %}
  begin_block,  // {%
  end_block,    // %}
  begin_output,
  end_output,
  name,
  text,    // a literal
  number,  // likewise
  sign,    // of one or two characters
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 1;
  std::string text = {};  // of a name or a sign; data
  Value literal = {};
};

/// As one line of UTF-8 without control characters, which errors have.
std::string one_line(std::string_view text);

/// Where a template is: for errors.
struct TemplateLine {
  const std::string& name;
  int line = 1;
  /// Error (input) "NAME: line N: WRONG; ADVICE".
  [[noreturn]] void refuse(const std::string& wrong, const std::string& advice = {}) const;
};

/// How Jinja reads a template: as transformers does for conversations (trim_blocks and
/// lstrip_blocks), or everything as it is written (keep_trailing_newline).
enum class TemplateForm : std::uint8_t { conversation, verbatim };

/// Error (input): what is not a token, a tag that does not end.
std::vector<Token> tokens_of(std::string_view text, const std::string& name, TemplateForm form);

}  // namespace tessera::data::jinja
