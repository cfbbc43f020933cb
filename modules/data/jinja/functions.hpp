// The filters, tests and methods that templates call.
#pragma once
#include <string_view>

#include "jinja/value.hpp"

namespace tessera::data::jinja {

/// The first value is the one that the filter or method is applied to. Problems: values that do not
/// fit.
using FilterFunction = Value (*)(const Arguments& arguments);
using TestFunction = bool (*)(const Arguments& arguments);

/// Null: there is no such filter, test or method.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
FilterFunction find_method(std::string_view name);

/// Whether `needle` is in a text, a list or the names of an object.
bool contains(const Value& whole, const Value& needle);
/// The member or the item; undefined where there is none.
Value item_of(const Value& object, const Value& index);
/// Those that `for` goes through: of a list, the names of an object, the characters of a text.
List entries_of(const Value& value);

}  // namespace tessera::data::jinja
