export module tessera.grammar:expression;

import tessera.base;

// What a grammar consists of.

export namespace tessera::grammar {

/// Characters of Unicode from `first` to `last`, both included.
struct CharacterRange {
  char32_t first = 0;
  char32_t last = 0;
};
inline constexpr char32_t last_character = 0x10FFFF;

/// The characters that are in none of the ranges.
std::vector<CharacterRange> all_but(std::vector<CharacterRange> ranges);

/// A set of texts.
struct Expression {
  enum class Kind : std::uint8_t {
    bytes,       // this text
    characters,  // one character of the ranges
    sequence,    // the parts one after the other
    choice,      // one of the parts; without parts: no text at all
    repeat,      // the only part, `least` to `most` times
    rule         // what the rule with this number has
  };
  Kind kind = Kind::sequence;
  std::string text = {};
  std::vector<CharacterRange> ranges = {};
  std::vector<Expression> parts = {};
  std::int64_t least = 0;
  std::int64_t most = -1;  // -1: any number
  std::size_t number = 0;  // of the rule
};

/// This text.
Expression bytes(std::string text);
/// One character of the ranges.
Expression characters(std::vector<CharacterRange> ranges);
/// The parts one after the other.
Expression sequence(std::vector<Expression> parts);
/// One of the parts.
Expression choice(std::vector<Expression> parts);
/// The part from `least` to `most` times; -1: any number.
Expression repeat(Expression part, std::int64_t least, std::int64_t most = -1);
/// The part, or nothing.
Expression optional(Expression part);
/// What the rule with this number has.
Expression rule(std::size_t number);

/// Rules, of which the first one has the whole texts.
struct Grammar {
  std::vector<Expression> rules = {};

  /// A rule without texts, until it is assigned.
  std::size_t add();
  std::size_t add(Expression expression);
};

}  // namespace tessera::grammar
