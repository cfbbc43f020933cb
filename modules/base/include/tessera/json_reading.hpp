// Members of a JSON document from outside: what is missing, of another type or out of range is an
// error with the file's name, never one of the JSON library.
#pragma once
#include <cmath>
#include <concepts>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "tessera/json.hpp"

namespace tessera {

/// A document has another form than its reader expects. The text fits after "FILE: ".
struct JsonProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What `error` says, if it is a JsonProblem or of the JSON library; empty otherwise.
std::string json_problem(const std::exception& error);
/// Throws Error (input) "WHERE: it has another form than expected: PROBLEM; ADVICE".
[[noreturn]] void refuse_json(const std::string& where, const std::string& problem,
                              const std::string& advice);

/// The value as a T: a boolean, a whole number within T's range, a finite number, or a text. Throws
/// JsonProblem; `name` is what the value is of.
template <class T, class Json>
T json_value(const Json& value, const std::string& name) {
  if constexpr (std::same_as<T, bool>) {
    if (value.is_boolean()) {
      return value.template get<bool>();
    }
  } else if constexpr (std::integral<T>) {
    if (value.is_number_unsigned() && std::in_range<T>(value.template get<std::uint64_t>())) {
      return value.template get<T>();
    }
    if (value.is_number_integer() && !value.is_number_unsigned() &&
        std::in_range<T>(value.template get<std::int64_t>())) {
      return value.template get<T>();
    }
  } else if constexpr (std::floating_point<T>) {
    if (value.is_number() && std::isfinite(value.template get<T>())) {
      return value.template get<T>();
    }
  } else {
    static_assert(std::same_as<T, std::string>);
    if (value.is_string()) {
      return value.template get<std::string>();
    }
  }
  throw JsonProblem("'" + name + "' is not " +
                    (std::same_as<T, bool>    ? "true or false"
                     : std::integral<T>       ? "a whole number in range"
                     : std::floating_point<T> ? "a number"
                                              : "a text"));
}

/// The member `name` of an object, of any type.
template <class Json>
const Json& json_member(const Json& object, const char* name) {
  const auto found = object.find(name);  // the end, of what is not an object
  if (found == object.end()) {
    throw JsonProblem("'" + std::string(name) + "' is missing");
  }
  return *found;
}

template <class T, class Json>
T json_member(const Json& object, const char* name) {
  return json_value<T>(json_member(object, name), name);
}

/// Calls `read`, which reads the document `where`; problems with its form are errors of it.
template <class Read>
auto reading_json(const std::string& where, Read&& read, const std::string& advice = {}) {
  try {
    return std::forward<Read>(read)();
  } catch (const std::exception& error) {
    const std::string problem = json_problem(error);
    if (problem.empty()) {
      throw;
    }
    refuse_json(where, problem, advice);
  }
}

}  // namespace tessera
