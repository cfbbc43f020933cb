// The tests that `is` and filters call.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/texts.hpp"

namespace tessera::data::jinja {
namespace {

template <bool (Value::*member)() const>
Value is_kind(const Call& c) {
  return (c.object().*member)();
}
template <class T>
Value is_type(const Call& c) {
  return c.object().is<T>();
}
Value is_defined(const Call& c) { return !c.object().is_undefined(); }
Value is_number(const Call& c) { return c.object().is_number() || c.object().is_big(); }
Value is_integer(const Call& c) { return c.object().is<std::int64_t>() || c.object().is_big(); }
Value is_sequence(const Call& c) {
  const Value& value = c.object();
  return value.is_text() || value.is_dict() || value.is_undefined() ||
         value.is_form(SequenceKind::list) || value.is_form(SequenceKind::tuple) ||
         value.is_form(SequenceKind::range);
}
Value is_iterable(const Call& c) {
  const Value& value = c.object();
  return value.is_text() || value.is_dict() || value.is_undefined() || value.is_sequence() ||
         value.loop() != nullptr;
}
template <bool wanted>
Value is_flag(const Call& c) {
  return c.object().is<bool>() && c.object().truth() == wanted;
}
Value is_callable(const Call& c) { return c.object().callable() != nullptr; }
template <std::int64_t remainder>
Value is_remainder_of_two(const Call& c) {
  return computed(Operation::remainder, c.object(), Value(std::int64_t{2}), c.budget).number() ==
         remainder;
}
Value is_divisible(const Call& c) {
  return computed(Operation::remainder, c.object(), c[1], c.budget).number() == 0;
}
Value is_in(const Call& c) { return contains(c[1], c.object(), c.budget); }
Value is_same(const Call& c) { return c.object().same(c[1]); }
template <bool wanted>
Value is_equal(const Call& c) {
  return equal(c.object(), c[1], c.budget) == wanted;
}
Value is_less(const Call& c) { return compare(c.object(), c[1], c.budget) < 0; }
Value is_at_most(const Call& c) { return compare(c.object(), c[1], c.budget) <= 0; }
Value is_greater(const Call& c) { return compare(c.object(), c[1], c.budget) > 0; }
Value is_at_least(const Call& c) { return compare(c.object(), c[1], c.budget) >= 0; }
template <bool upper>
Value is_case(const Call& c) {
  return has_case(printed(c.object(), c.budget), upper, c.budget);
}

}  // namespace

const Signature* find_test(std::string_view name) {
  static const std::vector<Signature> tests = {{"!=", "other", is_equal<false>},
                                               {"<", "other", is_less},
                                               {"<=", "other", is_at_most},
                                               {"==", "other", is_equal<true>},
                                               {">", "other", is_greater},
                                               {">=", "other", is_at_least},
                                               {"boolean", "", is_type<bool>},
                                               {"callable", "", is_callable},
                                               {"defined", "", is_defined},
                                               {"divisibleby", "num", is_divisible},
                                               {"eq", "other", is_equal<true>},
                                               {"equalto", "other", is_equal<true>},
                                               {"even", "", is_remainder_of_two<0>},
                                               {"false", "", is_flag<false>},
                                               {"float", "", is_type<double>},
                                               {"ge", "other", is_at_least},
                                               {"greaterthan", "other", is_greater},
                                               {"gt", "other", is_greater},
                                               {"in", "seq", is_in},
                                               {"integer", "", is_integer},
                                               {"iterable", "", is_iterable},
                                               {"le", "other", is_at_most},
                                               {"lessthan", "other", is_less},
                                               {"lower", "", is_case<false>},
                                               {"lt", "other", is_less},
                                               {"mapping", "", is_kind<&Value::is_dict>},
                                               {"ne", "other", is_equal<false>},
                                               {"none", "", is_kind<&Value::is_none>},
                                               {"number", "", is_number},
                                               {"odd", "", is_remainder_of_two<1>},
                                               {"sameas", "other", is_same},
                                               {"sequence", "", is_sequence},
                                               {"string", "", is_kind<&Value::is_text>},
                                               {"true", "", is_flag<true>},
                                               {"undefined", "", is_kind<&Value::is_undefined>},
                                               {"upper", "", is_case<true>}};
  const auto at = std::ranges::find(tests, name, &Signature::name);
  return at == tests.end() ? nullptr : &*at;
}

}  // namespace tessera::data::jinja
