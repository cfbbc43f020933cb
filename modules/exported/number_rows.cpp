// Operators of numbers: sizes, what is computed of them, and what is asserted of them.
module;
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
module tessera.exported;

import tessera.base;
import tessera.tensor;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using A = const Arguments&;

RunValue real(double value) {
  return {
      .tensor = {}, .integer = static_cast<std::int64_t>(value), .real = value, .is_real = true};
}

/// A function of two numbers, in reals where one of them is.
template <class F>
RunValue both(A a, F f) {
  const RunValue x = a.number(0);
  const RunValue y = a.number(1);
  return x.is_real || y.is_real ? real(f(x.real, y.real)) : whole_number(f(x.integer, y.integer));
}
template <class F>
RunValue compared(A a, F f) {
  const RunValue x = a.number(0);
  const RunValue y = a.number(1);
  return whole_number(x.is_real || y.is_real ? f(x.real, y.real) : f(x.integer, y.integer));
}

std::int64_t floor_quotient(A a) {
  const std::int64_t x = a.integer(0);
  const std::int64_t y = a.integer(1);
  if (y == 0 || y == -1) {
    if (y == 0) {
      a.refuse("the divisor is 0");
    }
    return -x;
  }
  return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
}

RunValue power(A a) {
  const RunValue x = a.number(0);
  const RunValue y = a.number(1);
  const double result = std::pow(x.real, y.real);
  return x.is_real || y.is_real || y.integer < 0 ? real(result)
                                                 : whole_number(static_cast<std::int64_t>(result));
}

Tensors nothing(A /*a*/) { return {}; }

constexpr AtenOperator rows[] = {
    {"aten.sym_size.int", "self dim", nullptr,
     [](A a) { return whole_number(a.tensor(0).size(a.integer(1))); }},
    {"aten.sym_numel.default", "self", nullptr,
     [](A a) { return whole_number(a.tensor(0).numel()); }},
    {"_operator.add", "a b", nullptr,
     [](A a) { return both(a, [](auto x, auto y) { return x + y; }); }},
    {"_operator.sub", "a b", nullptr,
     [](A a) { return both(a, [](auto x, auto y) { return x - y; }); }},
    {"_operator.mul", "a b", nullptr,
     [](A a) { return both(a, [](auto x, auto y) { return x * y; }); }},
    {"_operator.neg", "a", nullptr,
     [](A a) { return a.number(0).is_real ? real(-a.real(0)) : whole_number(-a.integer(0)); }},
    {"_operator.floordiv", "a b", nullptr, [](A a) { return whole_number(floor_quotient(a)); }},
    {"_operator.mod", "a b", nullptr,
     [](A a) { return whole_number(a.integer(0) - floor_quotient(a) * a.integer(1)); }},
    {"_operator.truediv", "a b", nullptr, [](A a) { return real(a.real(0) / a.real(1)); }},
    {"_operator.pow", "a b", nullptr, power},
    {"_operator.eq", "a b", nullptr,
     [](A a) { return compared(a, [](auto x, auto y) { return x == y ? 1 : 0; }); }},
    {"_operator.ne", "a b", nullptr,
     [](A a) { return compared(a, [](auto x, auto y) { return x != y ? 1 : 0; }); }},
    {"_operator.lt", "a b", nullptr,
     [](A a) { return compared(a, [](auto x, auto y) { return x < y ? 1 : 0; }); }},
    {"_operator.le", "a b", nullptr,
     [](A a) { return compared(a, [](auto x, auto y) { return x <= y ? 1 : 0; }); }},
    {"_operator.gt", "a b", nullptr,
     [](A a) { return compared(a, [](auto x, auto y) { return x > y ? 1 : 0; }); }},
    {"_operator.ge", "a b", nullptr,
     [](A a) { return compared(a, [](auto x, auto y) { return x >= y ? 1 : 0; }); }},
    {"_operator.and_", "a b", nullptr,
     [](A a) { return whole_number(a.integer(0) & a.integer(1)); }},
    {"_operator.or_", "a b", nullptr,
     [](A a) { return whole_number(a.integer(0) | a.integer(1)); }},
    {"torch.sym_max", "a b", nullptr,
     [](A a) { return both(a, [](auto x, auto y) { return std::max(x, y); }); }},
    {"torch.sym_min", "a b", nullptr,
     [](A a) { return both(a, [](auto x, auto y) { return std::min(x, y); }); }},
    {"torch.sym_not", "a", nullptr, [](A a) { return whole_number(a.integer(0) == 0 ? 1 : 0); }},
    {"torch.sym_float", "a", nullptr, [](A a) { return real(a.real(0)); }},
    {"torch.sym_int", "a", nullptr,
     [](A a) { return whole_number(static_cast<std::int64_t>(a.real(0))); }},
    {"torch.sym_ite", "a b c", nullptr, [](A a) { return a.number(a.flag(0) ? 1 : 2); }},
    {"math.ceil", "a", nullptr,
     [](A a) { return whole_number(static_cast<std::int64_t>(std::ceil(a.real(0)))); }},
    {"math.floor", "a", nullptr,
     [](A a) { return whole_number(static_cast<std::int64_t>(std::floor(a.real(0)))); }},
    {"math.trunc", "a", nullptr,
     [](A a) { return whole_number(static_cast<std::int64_t>(std::trunc(a.real(0)))); }},
    // What the exporter has asserted of sizes holds for the sizes that it was given; operators
    // check the shapes that they get.
    {"aten._assert_scalar.default", "-self -assert_msg", nothing},
    {"aten._assert_async.msg", "-self -assert_msg", nothing},
    {"aten._assert_tensor_metadata.default", "-a -size -stride -dtype -device -layout", nothing},
    {"aten.sym_constrain_range_for_size.default", "-size -min -max", nothing},
    {"aten.sym_constrain_range.default", "-size -min -max", nothing},
};

}  // namespace

std::span<const AtenOperator> number_rows() { return rows; }

}  // namespace tessera::exported
