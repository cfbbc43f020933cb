// The filters, tests and methods that templates call.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.hpp"

namespace tessera::data::jinja {

/// The arguments of a call, each at the place of its parameter.
class Call {
 public:
  Call(Budget& of_run, std::vector<std::optional<Value>> bound, Arguments others)
      : budget(of_run), bound_(std::move(bound)), rest(std::move(others)) {}

  /// The value that the filter, test or method is applied to.
  const Value& object() const { return *bound_[0]; }
  bool has(std::size_t place) const { return bound_[place].has_value(); }
  /// An argument that must be given; the parameters' texts say which.
  const Value& operator[](std::size_t place) const { return *bound_[place]; }
  Value get(std::size_t place, const Value& otherwise) const {
    return has(place) ? *bound_[place] : otherwise;
  }
  /// An argument, or none where it is not given.
  Value get(std::size_t place) const { return get(place, Value()); }
  Value text(std::string made) const { return make_text(budget, std::move(made)); }
  Value list(List made, SequenceKind form = SequenceKind::list) const {
    return make_list(budget, std::move(made), form);
  }

  Budget& budget;

 private:
  std::vector<std::optional<Value>> bound_;

 public:
  const Arguments rest;  // of those that give arguments on to another one
};

using Body = Value (*)(const Call& call);

/// A filter, test or method, with its parameters' names as Jinja's documentation has them.
struct Signature {
  std::string_view name;
  /// After the object: "old new count?"; ? may be left out, * takes all others.
  std::string_view parameters;
  Body body;
};

/// Calls it: `arguments` begin with the object. Problem: an argument that it does not have, one
/// that is missing, and what its body refuses.
Value call(const Signature& what, Arguments arguments, Budget& budget);

/// Null: there is no such filter, test or method.
const Signature* find_filter(std::string_view name);
const Signature* find_test(std::string_view name);
/// Whether any value has such a method.
bool is_method(std::string_view name);
const Signature* method_of(const Value& object, std::string_view name);

/// Whether `needle` is in a text, a list or the names of an object.
bool contains(const Value& whole, const Value& needle, Budget& budget);
/// OBJECT.NAME and OBJECT[INDEX]; undefined where there is none.
Value attribute_of(const Value& object, const std::string& name, Budget& budget);
Value item_of(const Value& object, const Value& index, Budget& budget);
/// Those that `for` goes through: of a list, the names of an object, the characters of a text.
List entries_of(const Value& value, Budget& budget);

enum class Operation : std::uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  remainder,
  power,
};
Value computed(Operation operation, const Value& a, const Value& b, Budget& budget);
Value negated(const Value& value, Budget& budget);
/// Python's OBJECT[first:last:by]; none: left out.
Value sliced(const Value& object, const Value& first, const Value& last, const Value& by,
             Budget& budget);
Value make_range(std::int64_t begin, std::int64_t end, std::int64_t step, Budget& budget);

}  // namespace tessera::data::jinja
