module tessera.grammar:numbers;

import tessera.base;
import :expression;

// Numbers in JSON.

namespace tessera::grammar {

/// The bounds of a number, both included.
struct NumberBounds {
  std::optional<std::int64_t> least = std::nullopt;
  std::optional<std::int64_t> most = std::nullopt;
};

/// The whole numbers within the bounds.
Expression whole_numbers(const NumberBounds& bounds);

/// Whole numbers and decimal fractions within the bounds; with bounds on one side that are not
/// included (`above`, `below`), without these.
struct DecimalBounds {
  NumberBounds bounds = {};
  bool above = false;
  bool below = false;
};
Expression decimal_numbers(const DecimalBounds& bounds);

}  // namespace tessera::grammar
