// Writes the text that a template makes of its variables.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "jinja/syntax.hpp"
#include "jinja/value.hpp"

namespace tessera::data::jinja {

/// What {% generation %} marks.
struct GenerationSpan {
  std::size_t begin = 0;  // bytes
  std::size_t end = 0;
  std::optional<std::size_t> message = std::nullopt;  // of which message, where that is known
};

struct Output {
  std::string text;
  std::vector<GenerationSpan> generated;  // in their order
  std::int64_t steps = 0;                 // that it took
};

/// `messages`: those among the variables. `now`: the time of strftime_now, as "2026-01-31" or
/// "2026-01-31T12:00:00"; empty: none, so a template that reads it is refused.
/// Error (input) "NAME: line 3: ": an operation that values do not allow, a limit that is reached,
/// what raise_exception() says.
Output run(const Template& source, const Dict& variables, const List& messages,
           const std::string& now);

/// Python's datetime.strftime. Problem: no such time, a directive that is not supported.
std::string time_text(const std::string& now, const std::string& format);

}  // namespace tessera::data::jinja
