// Python's arithmetic. Whole numbers have 64 bits: what does not fit is a problem.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "jinja/functions.hpp"

namespace tessera::data::jinja {
namespace {

[[noreturn]] void too_large() { throw Problem("a number is too large (expected at most 64 bits)"); }

std::int64_t checked(bool overflows, const std::int64_t& value) {
  if (overflows) {
    too_large();
  }
  return value;
}

void check_divisor(bool is_zero) {
  if (is_zero) {
    throw Problem("a division by zero");
  }
}

std::int64_t whole_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  if (base == 0 || base == 1 || base == -1) {
    return exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base;
  }
  for (; exponent > 0; --exponent) {  // at most 63 times before it is too large
    checked(__builtin_mul_overflow(result, base, &result), result);
  }
  return result;
}

Value whole_result(Operation operation, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (operation) {
    case Operation::add:
      return checked(__builtin_add_overflow(a, b, &result), result);
    case Operation::subtract:
      return checked(__builtin_sub_overflow(a, b, &result), result);
    case Operation::multiply:
      return checked(__builtin_mul_overflow(a, b, &result), result);
    case Operation::power:
      if (b < 0) {
        check_divisor(a == 0);
        return std::pow(static_cast<double>(a), static_cast<double>(b));
      }
      return whole_power(a, b);
    default:
      break;
  }
  check_divisor(b == 0);
  if (operation == Operation::divide) {
    constexpr std::int64_t exact = std::int64_t{1} << 53;
    checked(a > exact || a < -exact || b > exact || b < -exact, 0);
    return static_cast<double>(a) / static_cast<double>(b);
  }
  if (b == -1) {  // the least number has no quotient of 64 bits
    return operation == Operation::floor_divide ? whole_result(Operation::subtract, 0, a)
                                                : Value(std::int64_t{0});
  }
  // Python rounds down, and the remainder has the sign of the divisor.
  const std::int64_t remainder = a % b;
  const bool moves = remainder != 0 && (remainder < 0) != (b < 0);
  return operation == Operation::floor_divide ? a / b - (moves ? 1 : 0)
                                              : remainder + (moves ? b : 0);
}

/// The quotient rounded down and the remainder, as Python's float_divmod.
std::pair<double, double> real_division(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (quotient == 0) {
    return {std::copysign(0.0, a / b), remainder};
  }
  const double floor = std::floor(quotient);
  return {quotient - floor > 0.5 ? floor + 1 : floor, remainder};
}

double real_power(double a, double b) {
  check_divisor(a == 0 && b < 0);
  const double result = std::pow(a, b);
  if (std::isfinite(a) && std::isfinite(b) && !std::isfinite(result)) {
    throw Problem(std::isnan(result) ? "a power that is a complex number is not supported"
                                     : "a number is too large");
  }
  return result;
}

Value real_result(Operation operation, double a, double b) {
  switch (operation) {
    case Operation::add:
      return a + b;
    case Operation::subtract:
      return a - b;
    case Operation::multiply:
      return a * b;
    case Operation::power:
      return real_power(a, b);
    default:
      break;
  }
  check_divisor(b == 0);
  return operation == Operation::divide         ? Value(a / b)
         : operation == Operation::floor_divide ? Value(real_division(a, b).first)
                                                : Value(real_division(a, b).second);
}

/// How often Python repeats a text or a list.
std::size_t times(const Value& count) {
  return static_cast<std::size_t>(std::max<std::int64_t>(count.whole(), 0));
}

std::size_t product(std::size_t a, std::size_t b) {
  std::size_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::size_t>::max() : result;
}

Value repeated_text(const std::string& text, std::size_t count, Budget& budget) {
  const std::size_t bytes = product(text.size(), count);
  budget.check_room(bytes);
  budget.read(bytes);
  std::string out;
  out.reserve(bytes);
  for (std::size_t i = 0; i < count && !text.empty(); ++i) {
    out += text;
  }
  return make_text(budget, std::move(out));
}

Value repeated_list(const Sequence& list, std::size_t count, Budget& budget) {
  const std::size_t entries = product(list.entries.size(), count);
  budget.check_room(product(entries, sizeof(Value)));
  budget.step(entries);
  List out;
  out.reserve(entries);
  for (std::size_t i = 0; i < count && !list.entries.empty(); ++i) {
    out.insert(out.end(), list.entries.begin(), list.entries.end());
  }
  return make_list(budget, std::move(out), list.form);
}

bool is_plain_list(const Value& value) {
  return value.is_form(SequenceKind::list) || value.is_form(SequenceKind::tuple);
}

Value joined_lists(const Sequence& a, const Sequence& b, Budget& budget) {
  const std::size_t entries = a.entries.size() + b.entries.size();
  budget.check_room(entries * sizeof(Value));
  budget.step(entries);
  List all;
  all.reserve(entries);
  all.insert(all.end(), a.entries.begin(), a.entries.end());
  all.insert(all.end(), b.entries.begin(), b.entries.end());
  return make_list(budget, std::move(all), a.form);
}

}  // namespace

Value computed(Operation operation, const Value& a, const Value& b, Budget& budget) {
  if (a.is_markup() || b.is_markup()) {
    throw Problem("an operation with a text of 'safe' or 'escape' is not supported; use '~'");
  }
  if ((a.is_number() || a.is_big()) && (b.is_number() || b.is_big())) {
    return !a.is<double>() && !b.is<double>() ? whole_result(operation, a.whole(), b.whole())
                                              : real_result(operation, a.number(), b.number());
  }
  if (operation == Operation::add && a.is_text() && b.is_text()) {
    budget.read(a.text().size() + b.text().size());
    budget.check_room(a.text().size() + b.text().size());
    return make_text(budget, a.text() + b.text());
  }
  if (operation == Operation::add && is_plain_list(a) && is_plain_list(b) &&
      a.sequence().form == b.sequence().form) {
    return joined_lists(a.sequence(), b.sequence(), budget);
  }
  if (operation == Operation::multiply && (a.is_whole() || b.is_whole())) {
    const Value& object = a.is_whole() ? b : a;
    const Value& count = a.is_whole() ? a : b;
    if (object.is_text()) {
      return repeated_text(object.text(), times(count), budget);
    }
    if (is_plain_list(object)) {
      return repeated_list(object.sequence(), times(count), budget);
    }
  }
  throw Problem(fmt::format("an operation with {} and {} is not supported", a.kind(), b.kind()));
}

Value negated(const Value& value, Budget& budget) {
  if (value.is_big()) {
    const std::string& digits = value.digits();
    return Value::whole_number(digits.starts_with('-') ? digits.substr(1) : "-" + digits, &budget);
  }
  return value.is_whole() ? whole_result(Operation::subtract, 0, value.whole())
                          : Value(-value.number());
}

namespace {

/// Python's slice.indices: where it begins and how many there are.
struct SliceIndices {
  std::int64_t begin = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
};

SliceIndices cut(std::int64_t count, const Value& first, const Value& last, const Value& by) {
  // A step beyond the length takes one entry, and so does the length.
  const std::int64_t step =
      by.is_none() ? 1 : std::clamp<std::int64_t>(by.whole(), -count - 1, count + 1);
  if (!by.is_none() && by.whole() == 0) {
    throw Problem("the step of a slice is 0");
  }
  const auto bound = [&](const Value& value, std::int64_t absent) {
    if (value.is_none()) {
      return absent;
    }
    const std::int64_t at = value.whole() < 0 ? value.whole() + count : value.whole();
    return std::clamp<std::int64_t>(at, step > 0 ? 0 : -1, step > 0 ? count : count - 1);
  };
  const std::int64_t begin = bound(first, step > 0 ? 0 : count - 1);
  const std::int64_t end = bound(last, step > 0 ? count : -1);
  const std::int64_t span = step > 0 ? end - begin : begin - end;
  return {begin, step, span <= 0 ? 0 : (span - 1) / std::abs(step) + 1};
}

}  // namespace

Value sliced(const Value& object, const Value& first, const Value& last, const Value& by,
             Budget& budget) {
  if (object.is_sequence()) {
    const Sequence& sequence = object.sequence();
    if (!is_plain_list(object)) {
      throw Problem(fmt::format("a part of {} is not supported; use '| list'", object.kind()));
    }
    const SliceIndices part = cut(std::ssize(sequence.entries), first, last, by);
    budget.step(static_cast<std::size_t>(part.count));
    budget.check_room(static_cast<std::size_t>(part.count) * sizeof(Value));
    List out;
    out.reserve(static_cast<std::size_t>(part.count));
    for (std::int64_t i = 0; i < part.count; ++i) {
      out.push_back(sequence.entries[static_cast<std::size_t>(part.begin + i * part.step)]);
    }
    return make_list(budget, std::move(out), sequence.form);
  }
  const std::string& text = object.text();
  const Characters characters(text, budget);
  const SliceIndices part = cut(std::ssize(characters), first, last, by);
  std::string out;
  for (std::int64_t i = 0; i < part.count; ++i) {
    out += characters[static_cast<std::size_t>(part.begin + i * part.step)];
  }
  return make_text(budget, std::move(out));
}

Value make_range(std::int64_t begin, std::int64_t end, std::int64_t step, Budget& budget) {
  if (step == 0) {
    throw Problem("the step of range is 0");
  }
  List all;
  std::int64_t i = begin;
  while (step > 0 ? i < end : i > end) {
    if (std::ssize(all) >= Limits::range) {
      throw Problem(fmt::format("a range is too long (expected at most {})", Limits::range));
    }
    budget.step();
    all.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  auto made = std::make_shared<Sequence>(budget, std::move(all), SequenceKind::range);
  made->bounds = {begin, end, step};
  return Value::Data(std::shared_ptr<const Sequence>(std::move(made)));
}

}  // namespace tessera::data::jinja
