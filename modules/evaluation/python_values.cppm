module;
#include <nlohmann/json_fwd.hpp>
module tessera.evaluation:python_values;

import tessera.base;

// Values that templates write as Python does.

namespace tessera::evaluation {

/// What ast.literal_eval makes of a text: texts, numbers, True, False, None, lists, tuples and
/// objects of these. Nothing: it is none of them.
std::optional<nlohmann::json> python_literal(std::string_view text);

/// str.isdigit() of ASCII.
bool is_digits(std::string_view text);

/// str.strip(), lstrip() and rstrip() of Unicode's white space.
std::string_view without_space_before(std::string_view text);
std::string_view without_space_behind(std::string_view text);
std::string_view without_space(std::string_view text);

}  // namespace tessera::evaluation
