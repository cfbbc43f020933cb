// Writes the text that a template makes of its variables.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "jinja/syntax.hpp"
#include "jinja/value.hpp"

namespace tessera::data::jinja {

struct Output {
  std::string text;
  /// The bytes that {% generation %} marks, in their order.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

/// Error (input) "NAME: line 3: ": an operation that values do not allow, a text of more than
/// 64 MiB, what raise_exception() says.
Output run(const Template& source, const Dict& variables);

}  // namespace tessera::data::jinja
