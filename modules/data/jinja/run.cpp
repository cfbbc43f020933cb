#include "jinja/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "jinja/functions.hpp"
#include "jinja/tokens.hpp"

import tessera.base;

namespace tessera::data::jinja {
namespace {

using Kind = ExpressionKind;

constexpr std::size_t longest_text = std::size_t{1} << 26;
constexpr std::int64_t most_turns = 1'000'000;  // of all loops together

std::int64_t checked(std::int64_t value, bool overflows) {
  if (overflows) {
    throw Problem("a number is too large");
  }
  return value;
}

Value whole_sum(Kind kind, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (kind) {
    case Kind::add:
      return checked(result, __builtin_add_overflow(a, b, &result)), result;
    case Kind::subtract:
      return checked(result, __builtin_sub_overflow(a, b, &result)), result;
    case Kind::multiply:
      return checked(result, __builtin_mul_overflow(a, b, &result)), result;
    default:
      break;
  }
  if (b == 0) {
    throw Problem("a division by zero");
  }
  if (kind == Kind::divide) {
    return static_cast<double>(a) / static_cast<double>(b);
  }
  checked(0, a == std::numeric_limits<std::int64_t>::min() && b == -1);
  // Python rounds down, and the remainder has the sign of the divisor.
  const std::int64_t remainder = a % b;
  const bool moves = remainder != 0 && (remainder < 0) != (b < 0);
  return kind == Kind::floor_divide ? a / b - (moves ? 1 : 0) : remainder + (moves ? b : 0);
}

Value real_sum(Kind kind, double a, double b) {
  switch (kind) {
    case Kind::add:
      return a + b;
    case Kind::subtract:
      return a - b;
    case Kind::multiply:
      return a * b;
    default:
      break;
  }
  if (b == 0) {
    throw Problem("a division by zero");
  }
  return kind == Kind::divide         ? a / b
         : kind == Kind::floor_divide ? std::floor(a / b)
                                      : a - b * std::floor(a / b);
}

std::string repeated(const std::string& text, std::int64_t count) {
  if (count > 0 && text.size() > longest_text / static_cast<std::size_t>(count)) {
    throw Problem("a text is too long");
  }
  std::string out;
  for (std::int64_t i = 0; i < count; ++i) {
    out += text;
  }
  return out;
}

Value computed(Kind kind, const Value& a, const Value& b) {
  if (kind == Kind::power) {
    const double result = std::pow(a.number(), b.number());
    const bool whole = a.is_whole() && b.is_whole() && b.whole() >= 0 && std::abs(result) < 0x1p53;
    return whole ? Value(static_cast<std::int64_t>(result)) : Value(result);
  }
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? whole_sum(kind, a.whole(), b.whole())
                                        : real_sum(kind, a.number(), b.number());
  }
  if (kind == Kind::add && a.is_text() && b.is_text()) {
    return a.text() + b.text();
  }
  if (kind == Kind::add && a.is_list() && b.is_list()) {
    List all = a.list();
    all.insert(all.end(), b.list().begin(), b.list().end());
    return all;
  }
  if (kind == Kind::multiply && (a.is_text() || b.is_text()) && (a.is_whole() || b.is_whole())) {
    return a.is_text() ? repeated(a.text(), b.whole()) : repeated(b.text(), a.whole());
  }
  throw Problem(fmt::format("an operation with {} and {} is not supported", a.kind(), b.kind()));
}

bool compared(Kind kind, const Value& a, const Value& b) {
  switch (kind) {
    case Kind::equal:
      return equal(a, b);
    case Kind::not_equal:
      return !equal(a, b);
    case Kind::less:
      return compare(a, b) < 0;
    case Kind::less_equal:
      return compare(a, b) <= 0;
    case Kind::greater:
      return compare(a, b) > 0;
    case Kind::greater_equal:
      return compare(a, b) >= 0;
    case Kind::in:
      return contains(b, a);
    default:
      return !contains(b, a);
  }
}

/// Python's slice.indices, and the entries there.
template <class Take>
void slice(std::int64_t count, const Value& first, const Value& last, const Value& by, Take take) {
  const std::int64_t step = by.is_none() ? 1 : by.whole();
  if (step == 0) {
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
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    take(static_cast<std::size_t>(i));
    if (step > count || -step > count) {
      return;
    }
  }
}

Value sliced(const Value& object, const Value& first, const Value& last, const Value& by) {
  if (object.is_list()) {
    List out;
    slice(std::ssize(object.list()), first, last, by,
          [&](std::size_t i) { out.push_back(object.list()[i]); });
    return out;
  }
  const std::string& text = object.text();
  const std::vector<std::size_t> starts = character_starts(text);
  std::string out;
  slice(std::ssize(starts) - 1, first, last, by,
        [&](std::size_t i) { out += text.substr(starts[i], starts[i + 1] - starts[i]); });
  return out;
}

/// Names and values, with inner ones before outer ones.
class Scopes {
 public:
  explicit Scopes(const Dict& variables) : variables_(variables) { open(); }

  void open() { marks_.push_back(values_.size()); }
  void close() {
    values_.resize(marks_.back());
    marks_.pop_back();
  }
  void set(const std::string& name, Value value) {
    for (std::size_t i = marks_.back(); i < values_.size(); ++i) {
      if (values_[i].first == name) {
        values_[i].second = std::move(value);
        return;
      }
    }
    values_.emplace_back(name, std::move(value));
  }
  /// `first`: the values before it are not visible, but for those of the whole template.
  Value get(const std::string& name) const {
    for (std::size_t i = values_.size(); i > hidden_end_; --i) {
      if (values_[i - 1].first == name) {
        return values_[i - 1].second;
      }
    }
    const std::size_t outermost = marks_.size() > 1 ? marks_[1] : values_.size();
    for (std::size_t i = std::min(outermost, hidden_end_); i > 0; --i) {
      if (values_[i - 1].first == name) {
        return values_[i - 1].second;
      }
    }
    const Value* found = variables_.find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  /// A macro sees its own names and those of the whole template.
  std::size_t hide() { return std::exchange(hidden_end_, values_.size()); }
  void show(std::size_t before) { hidden_end_ = before; }

 private:
  const Dict& variables_;
  std::vector<std::pair<std::string, Value>> values_;
  std::vector<std::size_t> marks_;
  std::size_t hidden_end_ = 0;
};

/// How a body ended.
enum class Ending : std::uint8_t { normal, leave, next };

class Interpreter {
 public:
  Interpreter(const Template& source, const Dict& variables) : source_(source), scopes_(variables) {
    add_functions();
  }

  Output run() {
    try {
      execute(source_.body, out_.text);
    } catch (const Problem& problem) {
      Place{source_.name, line_}.refuse(problem.what());
    }
    return std::move(out_);
  }

 private:
  void add_functions() {
    const auto add = [&](const char* name, std::function<Value(const Arguments&)> call) {
      scopes_.set(name, Value(Value::Data(std::make_shared<const Function>(std::move(call)))));
    };
    add("raise_exception", [](const Arguments& a) -> Value {
      throw Problem(fmt::format("the template refuses it: {}",
                                a.values.empty() ? "" : a.values[0].printed()));
    });
    add("namespace", [](const Arguments& a) -> Value {
      auto made = std::make_shared<Namespace>();
      for (const auto& [name, value] : a.named) {
        made->members.set(name, value);
      }
      return Value(Value::Data(std::move(made)));
    });
    add("dict", [](const Arguments& a) -> Value {
      Dict made;
      for (const auto& [name, value] : a.named) {
        made.set(name, value);
      }
      return made;
    });
    add("range", [](const Arguments& a) -> Value {
      const std::size_t count = a.values.size();
      if (count < 1 || count > 3) {
        throw Problem("range takes one to three numbers");
      }
      const std::int64_t begin = count > 1 ? a.values[0].whole() : 0;
      const std::int64_t end = a.values[count > 1 ? 1 : 0].whole();
      const std::int64_t step = count > 2 ? a.values[2].whole() : 1;
      if (step == 0) {
        throw Problem("the step of range is 0");
      }
      List all;
      for (std::int64_t i = begin; step > 0 ? i < end : i > end;
           checked(0, __builtin_add_overflow(i, step, &i))) {
        if (std::ssize(all) >= most_turns) {
          throw Problem("a range is too long");
        }
        all.emplace_back(i);
      }
      return all;
    });
  }

  // Statements.

  Ending execute(const Statements& all, std::string& out) {
    for (const Statement& one : all) {
      line_ = one.line;
      const Ending ending = execute(one, out);
      if (ending != Ending::normal) {
        return ending;
      }
      if (out.size() > longest_text) {
        throw Problem("the text is too long (expected at most 64 MiB)");
      }
    }
    return Ending::normal;
  }

  Ending execute(const Statement& one, std::string& out) {
    switch (one.kind) {
      case StatementKind::text:
        out += one.text;
        break;
      case StatementKind::output:
        out += value_of(*one.expressions[0]).printed();
        break;
      case StatementKind::branch:
        return branch(one, out);
      case StatementKind::loop:
        loop(one, out);
        break;
      case StatementKind::set:
        assign(one.targets, value_of(*one.expressions[0]));
        break;
      case StatementKind::set_member:
        set_member(one);
        break;
      case StatementKind::set_body: {
        std::string text;
        scopes_.open();
        execute(one.bodies[0], text);
        scopes_.close();
        scopes_.set(one.targets[0], Value(std::move(text)));
        break;
      }
      case StatementKind::macro:
        define(one);
        break;
      case StatementKind::generation: {
        const std::size_t begin = out.size();
        const Ending ending = execute(one.bodies[0], out);
        out_.generated.emplace_back(begin, out.size());
        return ending;
      }
      case StatementKind::leave:
        return Ending::leave;
      case StatementKind::next:
        return Ending::next;
    }
    return Ending::normal;
  }

  Ending branch(const Statement& one, std::string& out) {
    for (std::size_t i = 0; i < one.expressions.size(); ++i) {
      if (value_of(*one.expressions[i]).truth()) {
        return execute(one.bodies[i], out);
      }
    }
    return one.bodies.size() > one.expressions.size() ? execute(one.bodies.back(), out)
                                                      : Ending::normal;
  }

  void assign(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) {
      scopes_.set(targets[0], value);
      return;
    }
    const List parts = entries_of(value);
    if (parts.size() != targets.size()) {
      throw Problem(fmt::format("{} names for {} values", targets.size(), parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      scopes_.set(targets[i], parts[i]);
    }
  }

  void set_member(const Statement& one) {
    const Value object = scopes_.get(one.targets[0]);
    if (object.space() == nullptr) {
      throw Problem(
          fmt::format("'{}' is not a namespace, so its members cannot be set", one.targets[0]));
    }
    object.space()->members.set(one.targets[1], value_of(*one.expressions[0]));
  }

  void loop(const Statement& one, std::string& out) {
    List entries = entries_of(value_of(*one.expressions[0]));
    if (one.expressions.size() > 1) {
      List kept;
      for (const Value& entry : entries) {
        scopes_.open();
        assign(one.targets, entry);
        if (value_of(*one.expressions[1]).truth()) {
          kept.push_back(entry);
        }
        scopes_.close();
      }
      entries = std::move(kept);
    }
    if (entries.empty() && one.bodies.size() > 1) {
      execute(one.bodies[1], out);
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (++turns_ > most_turns) {
        throw Problem("the template's loops do not end");
      }
      scopes_.open();
      assign(one.targets, entries[i]);
      scopes_.set("loop", position(entries, i));
      const Ending ending = execute(one.bodies[0], out);
      scopes_.close();
      if (ending == Ending::leave) {
        break;
      }
    }
  }

  static Value position(const List& entries, std::size_t i) {
    const std::int64_t at = static_cast<std::int64_t>(i);
    const std::int64_t count = std::ssize(entries);
    Dict loop;
    loop.set("index0", at);
    loop.set("index", at + 1);
    loop.set("first", i == 0);
    loop.set("last", at + 1 == count);
    loop.set("length", count);
    loop.set("revindex", count - at);
    loop.set("revindex0", count - at - 1);
    if (i > 0) {
      loop.set("previtem", entries[i - 1]);
    }
    if (at + 1 < count) {
      loop.set("nextitem", entries[i + 1]);
    }
    return loop;
  }

  void define(const Statement& one) {
    scopes_.set(one.targets[0],
                Value(Value::Data(std::make_shared<const Function>(
                    [this, &one](const Arguments& arguments) { return called(one, arguments); }))));
  }

  Value called(const Statement& macro, const Arguments& arguments) {
    constexpr int deepest = 50;
    if (++calls_ > deepest) {
      throw Problem("macros call each other too deeply");
    }
    const std::size_t count = macro.targets.size() - 1;
    if (arguments.values.size() > count) {
      throw Problem(fmt::format("the macro '{}' takes {} arguments", macro.targets[0], count));
    }
    const std::size_t hidden = scopes_.hide();
    scopes_.open();
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& name = macro.targets[i + 1];
      const auto given =
          std::ranges::find(arguments.named, name, &std::pair<std::string, Value>::first);
      scopes_.set(name, i < arguments.values.size()       ? arguments.values[i]
                        : given != arguments.named.end()  ? given->second
                        : macro.expressions[i] != nullptr ? value_of(*macro.expressions[i])
                                                          : Value::undefined(name));
    }
    std::string text;
    execute(macro.bodies[0], text);
    scopes_.close();
    scopes_.show(hidden);
    --calls_;
    return text;
  }

  // Expressions.

  Value value_of(const Expression& e) {
    line_ = e.line;
    switch (e.kind) {
      case Kind::literal:
        return e.literal;
      case Kind::name:
        return scopes_.get(e.text);
      case Kind::list:
        return all_of(e);
      case Kind::dict:
        return dict(e);
      case Kind::logical_not:
        return !value_of(*e.items[0]).truth();
      case Kind::negate: {
        const Value value = value_of(*e.items[0]);
        return value.is_whole() ? whole_sum(Kind::subtract, 0, value.whole())
                                : Value(-value.number());
      }
      case Kind::logical_and: {
        const Value left = value_of(*e.items[0]);
        return left.truth() ? value_of(*e.items[1]) : left;
      }
      case Kind::logical_or: {
        const Value left = value_of(*e.items[0]);
        return left.truth() ? left : value_of(*e.items[1]);
      }
      case Kind::condition:
        return value_of(*e.items[0]).truth() ? value_of(*e.items[1])
               : e.items.size() > 2          ? value_of(*e.items[2])
                                             : Value::undefined("the other case");
      case Kind::attribute:
        return member(e);
      case Kind::item: {
        const Value object = value_of(*e.items[0]);
        const Value index = value_of(*e.items[1]);
        line_ = e.line;
        return item_of(object, index);
      }
      case Kind::slice:
        return slice_of(e);
      case Kind::call:
      case Kind::method:
      case Kind::filter:
      case Kind::test:
        return applied(e);
      default:
        return operation(e);
    }
  }

  Value operation(const Expression& e) {
    const Value a = value_of(*e.items[0]);
    const Value b = value_of(*e.items[1]);
    line_ = e.line;
    switch (e.kind) {
      case Kind::concatenate:
        return a.printed() + b.printed();
      case Kind::add:
      case Kind::subtract:
      case Kind::multiply:
      case Kind::divide:
      case Kind::floor_divide:
      case Kind::remainder:
      case Kind::power:
        return computed(e.kind, a, b);
      default:
        return compared(e.kind, a, b);
    }
  }

  List all_of(const Expression& e) {
    List all;
    for (const ExpressionPointer& item : e.items) {
      all.push_back(value_of(*item));
    }
    return all;
  }

  Value dict(const Expression& e) {
    Dict made;
    for (std::size_t i = 0; i + 1 < e.items.size(); i += 2) {
      made.set(value_of(*e.items[i]).text(), value_of(*e.items[i + 1]));
    }
    return made;
  }

  Value member(const Expression& e) {
    const Value object = value_of(*e.items[0]);
    line_ = e.line;
    if (object.is_undefined()) {
      throw Problem(fmt::format("the member '{}' of {}", e.text, object.kind()));
    }
    return item_of(object, Value(e.text));
  }

  Value slice_of(const Expression& e) {
    const Value object = value_of(*e.items[0]);
    const auto part = [&](std::size_t i) { return e.items[i] ? value_of(*e.items[i]) : Value(); };
    const Value first = part(1);
    const Value last = part(2);
    const Value by = part(3);
    line_ = e.line;
    return sliced(object, first, last, by);
  }

  Value applied(const Expression& e) {
    Arguments arguments;
    arguments.values = all_of(e);
    for (const auto& [name, value] : e.named) {
      arguments.named.emplace_back(name, value_of(*value));
    }
    line_ = e.line;
    if (e.test != nullptr) {
      return e.test(arguments);
    }
    if (e.filter != nullptr) {
      if (e.kind == Kind::method && arguments.values[0].is_undefined()) {
        throw Problem(fmt::format(".{}() of {}", e.text, arguments.values[0].kind()));
      }
      return e.filter(arguments);
    }
    const Value callee = arguments.values[0];
    if (callee.function() == nullptr) {
      throw Problem(fmt::format("a call of {}", callee.kind()));
    }
    arguments.values.erase(arguments.values.begin());
    const int line = line_;
    Value result = callee.function()->call(arguments);
    line_ = line;
    return result;
  }

  const Template& source_;
  Scopes scopes_;
  Output out_;
  int line_ = 1;
  int calls_ = 0;
  std::int64_t turns_ = 0;
};

}  // namespace

Output run(const Template& source, const Dict& variables) {
  return Interpreter(source, variables).run();
}

}  // namespace tessera::data::jinja
