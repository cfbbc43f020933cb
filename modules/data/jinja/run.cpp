#include "jinja/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <tessera/shown.hpp>
#include <unordered_map>

#include "jinja/functions.hpp"
#include "jinja/tokens.hpp"

namespace tessera::data::jinja {
namespace {

using Kind = ExpressionKind;

bool compared(Comparison which, const Value& a, const Value& b, Budget& budget) {
  switch (which) {
    case Comparison::equal:
      return equal(a, b, budget);
    case Comparison::not_equal:
      return !equal(a, b, budget);
    case Comparison::less:
      return compare(a, b, budget) < 0;
    case Comparison::less_equal:
      return compare(a, b, budget) <= 0;
    case Comparison::greater:
      return compare(a, b, budget) > 0;
    case Comparison::greater_equal:
      return compare(a, b, budget) >= 0;
    case Comparison::in:
      return contains(b, a, budget);
    default:
      return !contains(b, a, budget);
  }
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
  /// Null: there is none.
  const Value* find(const std::string& name, Budget& budget) const {
    budget.step(1 + values_.size() / 8);
    for (std::size_t i = values_.size(); i > hidden_end_; --i) {
      if (values_[i - 1].first == name) {
        return &values_[i - 1].second;
      }
    }
    const std::size_t outermost = marks_.size() > 1 ? marks_[1] : values_.size();
    for (std::size_t i = std::min(outermost, hidden_end_); i > 0; --i) {
      if (values_[i - 1].first == name) {
        return &values_[i - 1].second;
      }
    }
    return variables_.find(name);
  }
  /// A macro sees its own names and those of the whole template.
  std::size_t hide() { return std::exchange(hidden_end_, values_.size()); }
  void show(std::size_t before) { hidden_end_ = before; }
  const std::vector<std::pair<std::string, Value>>& values() const { return values_; }

 private:
  const Dict& variables_;
  std::vector<std::pair<std::string, Value>> values_;
  std::vector<std::size_t> marks_;
  std::size_t hidden_end_ = 0;
};

/// The messages of a conversation by their objects: which one a value is.
class Messages {
 public:
  explicit Messages(const List& messages) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].is_dict()) {
        places_.emplace(&messages[i].dict(), i);
      }
    }
  }
  std::optional<std::size_t> place(const Value& value) const {
    const auto found = value.is_dict() ? places_.find(&value.dict()) : places_.end();
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::unordered_map<const Dict*, std::size_t> places_;
};

void refuse_names(const Arguments& arguments, std::size_t most, const char* function) {
  if (!arguments.named.empty()) {
    throw Problem(fmt::format("the argument '{}' of '{}' is not supported",
                              shown(arguments.named[0].first, 40), function));
  }
  if (arguments.values.size() > most) {
    throw Problem(fmt::format("too many arguments of '{}' (expected at most {})", function, most));
  }
}

/// Python's dict(): of another one, or of pairs, with named members.
Dict dict_of(const Arguments& arguments, const char* function, Budget& budget) {
  if (arguments.values.size() > 1) {
    throw Problem(fmt::format("too many arguments of '{}' (expected at most 1)", function));
  }
  Dict made;
  if (!arguments.values.empty() && arguments.values[0].is_dict()) {
    made = arguments.values[0].dict();
  } else if (!arguments.values.empty()) {
    for (const Value& pair : entries_of(arguments.values[0], budget)) {
      const List& both = pair.sequence().entries;
      if (both.size() != 2) {
        throw Problem(fmt::format("'{}' takes pairs of a name and a value", function));
      }
      made.set(both[0].text(), both[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    made.set(name, value);
  }
  budget.step(made.members().size());
  return made;
}

Value range(const Arguments& a, Budget& budget) {
  refuse_names(a, 3, "range");
  const std::size_t count = a.values.size();
  if (count < 1) {
    throw Problem("'range' takes one to three numbers");
  }
  return make_range(count > 1 ? a.values[0].whole() : 0, a.values[count > 1 ? 1 : 0].whole(),
                    count > 2 ? a.values[2].whole() : 1, budget);
}

/// How a body ended.
enum class BodyEnd : std::uint8_t { normal, leave, next };

class Interpreter {
 public:
  Interpreter(const Template& source, const Dict& variables, const List& messages,
              const std::string& now)
      : source_(source), scopes_(variables), messages_(messages), now_(now) {
    add_functions();
  }

  Output run() {
    try {
      execute(source_.body, out_.text);
    } catch (const Problem& problem) {
      TemplateLine{source_.name, line_}.refuse(problem.what(), problem.advice);
    }
    out_.steps = budget_.steps_taken();
    return std::move(out_);
  }

 private:
  void add_functions() {
    const auto add = [&](const char* name, Callable::Call call) {
      functions_.emplace_back(
          name, Value::Data(std::make_shared<const Callable>(budget_, name, std::move(call))));
    };
    add("raise_exception", [this](const Arguments& a) -> Value {
      refuse_names(a, 1, "raise_exception");
      throw Problem("the template refuses it: " +
                    (a.values.empty() ? "" : printed(a.values[0], budget_)));
    });
    add("namespace", [this](const Arguments& a) -> Value {
      Dict members = dict_of(a, "namespace", budget_);
      budget_.take(sizeof(Namespace) + members.members().size() * sizeof(Value));
      namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(members)}));
      return Value::Data(namespaces_.back().get());
    });
    add("dict", [this](const Arguments& a) -> Value {
      return make_dict(budget_, dict_of(a, "dict", budget_));
    });
    add("range", [this](const Arguments& a) -> Value { return range(a, budget_); });
    add("strftime_now", [this](const Arguments& a) -> Value {
      refuse_names(a, 1, "strftime_now");
      if (a.values.empty()) {
        throw Problem("the argument 'format' of 'strftime_now' is missing");
      }
      budget_.step(a.values[0].text().size());
      return make_text(budget_, time_text(now_, a.values[0].text()));
    });
  }

  // Statements.

  BodyEnd execute(const Statements& all, std::string& out) {
    const Budget::Level level(budget_);
    for (const Statement& one : all) {
      line_ = one.line;
      budget_.step();
      const BodyEnd ending = execute(one, out);
      if (ending != BodyEnd::normal) {
        return ending;
      }
    }
    return BodyEnd::normal;
  }

  void write(std::string_view text, std::string& out) {
    budget_.read(text.size());
    budget_.check_written(out.size() + text.size());
    out += text;
  }

  BodyEnd execute(const Statement& one, std::string& out) {
    switch (one.kind) {
      case StatementKind::text:
        write(one.text, out);
        break;
      case StatementKind::output: {
        const Value value = value_of(*one.expressions[0]);
        if (value.is_undefined() && source_.strict) {
          throw Problem("what is written is not defined");
        }
        write(value.is_text() ? value.text() : printed(value, budget_), out);
        break;
      }
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
      case StatementKind::set_body:
        scopes_.set(one.targets[0], make_text(budget_, written(one.bodies[0])));
        break;
      case StatementKind::macro:
        define(one);
        break;
      case StatementKind::generation:
        generation(one, out);
        break;
      case StatementKind::leave:
        return BodyEnd::leave;
      case StatementKind::next:
        return BodyEnd::next;
    }
    return BodyEnd::normal;
  }

  /// What a body writes, with a scope of its own.
  std::string written(const Statements& body) {
    std::string text;
    scopes_.open();
    execute(body, text);
    scopes_.close();
    return text;
  }

  void generation(const Statement& one, std::string& out) {
    const std::size_t begin = out.size();
    scopes_.open();
    execute(one.bodies[0], out);
    scopes_.close();
    out_.generated.push_back({begin, out.size(), current_message()});
  }

  /// The message that the innermost loop is at, or else the only one that a variable is.
  std::optional<std::size_t> current_message() {
    for (auto at = loops_.rbegin(); at != loops_.rend(); ++at) {
      const Loop& loop = **at;
      if (const auto place = messages_.place(loop.entries[loop.at])) {
        return place;
      }
    }
    std::optional<std::size_t> only;
    budget_.step(scopes_.values().size());
    for (const auto& variable : scopes_.values()) {
      const auto place = messages_.place(variable.second);
      if (place && only && *only != *place) {
        return std::nullopt;
      }
      only = place ? place : only;
    }
    return only;
  }

  BodyEnd branch(const Statement& one, std::string& out) {
    for (std::size_t i = 0; i < one.expressions.size(); ++i) {
      if (value_of(*one.expressions[i]).truth()) {
        return execute(one.bodies[i], out);
      }
    }
    return one.bodies.size() > one.expressions.size() ? execute(one.bodies.back(), out)
                                                      : BodyEnd::normal;
  }

  void assign(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) {
      scopes_.set(targets[0], value);
      return;
    }
    const List parts = entries_of(value, budget_);
    if (parts.size() != targets.size()) {
      throw Problem(fmt::format("{} names for {} values", targets.size(), parts.size()));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      scopes_.set(targets[i], parts[i]);
    }
  }

  void set_member(const Statement& one) {
    const Value* const object = scopes_.find(one.targets[0], budget_);
    Namespace* const space = object != nullptr ? object->space() : nullptr;
    if (space == nullptr) {
      throw Problem(fmt::format("'{}' is not a namespace, so its members cannot be set",
                                shown(one.targets[0], 40)));
    }
    Value value = value_of(*one.expressions[0]);
    if (space->members.find(one.targets[1]) == nullptr) {
      budget_.take(one.targets[1].size() + sizeof(Value));
    }
    space->members.set(one.targets[1], std::move(value));
  }

  /// Those of the entries that the loop's condition lets through.
  List chosen(const Statement& one, List entries) {
    if (one.expressions.size() == 1) {
      return entries;
    }
    List kept;
    for (const Value& entry : entries) {
      scopes_.open();
      assign(one.targets, entry);
      if (value_of(*one.expressions[1]).truth()) {
        kept.push_back(entry);
      }
      scopes_.close();
    }
    return kept;
  }

  void loop(const Statement& one, std::string& out) {
    List entries = chosen(one, entries_of(value_of(*one.expressions[0]), budget_));
    if (entries.empty()) {
      if (one.bodies.size() > 1) {
        scopes_.open();
        execute(one.bodies[1], out);
        scopes_.close();
      }
      return;
    }
    const auto state = std::make_shared<Loop>(budget_, std::move(entries));
    loops_.push_back(state);
    for (; state->at < state->entries.size(); ++state->at) {
      scopes_.open();
      assign(one.targets, state->entries[state->at]);
      scopes_.set("loop", Value(Value::Data(state)));
      const BodyEnd ending = execute(one.bodies[0], out);
      scopes_.close();
      if (ending == BodyEnd::leave) {
        break;
      }
    }
    state->at = std::min(state->at, state->entries.size() - 1);
    loops_.pop_back();
  }

  void define(const Statement& one) {
    const std::string& name = one.targets[0];
    scopes_.set(name, Value::Data(std::make_shared<const Callable>(
                          budget_, name, [this, &one](const Arguments& arguments) {
                            return called(one, arguments);
                          })));
  }

  Value called(const Statement& macro, const Arguments& arguments) {
    const std::size_t count = macro.targets.size() - 1;
    const auto parameters = std::span(macro.targets).subspan(1);
    refuse_names({arguments.values, {}}, count, macro.targets[0].c_str());
    for (const auto& [name, value] : arguments.named) {
      const auto at = std::ranges::find(parameters, name);
      if (at == parameters.end() || at - parameters.begin() < std::ssize(arguments.values)) {
        throw Problem(fmt::format("the macro '{}' does not take the argument '{}' here",
                                  shown(macro.targets[0], 40), shown(name, 40)));
      }
    }
    const std::size_t hidden = scopes_.hide();
    const auto outer_loops = std::exchange(loops_, {});
    scopes_.open();
    ++macros_;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& name = parameters[i];
      const auto given =
          std::ranges::find(arguments.named, name, &std::pair<std::string, Value>::first);
      scopes_.set(name, i < arguments.values.size()       ? arguments.values[i]
                        : given != arguments.named.end()  ? given->second
                        : macro.expressions[i] != nullptr ? value_of(*macro.expressions[i])
                                                          : Value::undefined(shown(name, 40)));
    }
    std::string text;
    execute(macro.bodies[0], text);
    --macros_;
    scopes_.close();
    loops_ = outer_loops;
    scopes_.show(hidden);
    return make_text(budget_, std::move(text));
  }

  // Expressions.

  /// What begins a chain is computed first, then each operation with what is before it.
  Value value_of(const Expression& e) {
    const Budget::Level level(budget_);
    const std::size_t base = chain_.size();
    const Expression* first = &e;
    for (; first->kind >= Kind::logical_not; first = first->items[0]) {
      chain_.push_back(first);
    }
    Value value = beginning(*first);
    while (chain_.size() > base) {
      const Expression& next = *chain_.back();
      chain_.pop_back();
      budget_.step();
      line_ = next.line;
      value = operation(next, std::move(value));
    }
    return value;
  }

  Value beginning(const Expression& e) {
    budget_.step();
    line_ = e.line;
    switch (e.kind) {
      case Kind::literal:
        return e.literal;
      case Kind::name:
        return variable(e);
      case Kind::list:
        return make_list(budget_, all_of(e));
      case Kind::tuple:
        return make_list(budget_, all_of(e), SequenceKind::tuple);
      default:
        return dict(e);
    }
  }

  Value variable(const Expression& e) {
    if (const Value* const found = scopes_.find(e.text, budget_)) {
      return *found;
    }
    const auto function =
        std::ranges::find(functions_, e.text, &std::pair<std::string, Value>::first);
    if (e.text == "strftime_now" && now_.empty()) {
      throw Problem("the template reads the date of the day",
                    "set the date that it is to use: data.template_options = { now = "
                    "\"2026-01-31\" }");
    }
    if (function != functions_.end()) {
      return function->second;
    }
    constexpr std::array missing = {"cycler", "joiner", "lipsum", "self"};
    constexpr std::array of_macros = {"caller", "kwargs", "varargs"};
    if (std::ranges::find(missing, e.text) != missing.end() ||
        (macros_ > 0 && std::ranges::find(of_macros, e.text) != of_macros.end())) {
      throw Problem(fmt::format("'{}' is not supported", e.text));
    }
    return e.literal;
  }

  Value operation(const Expression& e, Value value) {
    switch (e.kind) {
      case Kind::logical_not:
        return !value.truth();
      case Kind::negate:
        return negated(value, budget_);
      case Kind::unchanged:
        static_cast<void>(value.is_big() ? 0.0 : value.number());
        return value.is<bool>() ? Value(value.whole()) : value;
      case Kind::logical_and:
        return value.truth() ? value_of(*e.items[1]) : value;
      case Kind::logical_or:
        return value.truth() ? value : value_of(*e.items[1]);
      case Kind::condition:
        return value.truth()        ? value_of(*e.items[1])
               : e.items.size() > 2 ? value_of(*e.items[2])
                                    : Value::undefined("the other case");
      case Kind::arithmetic: {
        const Value other = value_of(*e.items[1]);
        line_ = e.line;
        return computed(e.operation, value, other, budget_);
      }
      case Kind::concatenate:
        return joined(value, value_of(*e.items[1]));
      case Kind::comparison:
        return comparison(e, std::move(value));
      case Kind::attribute:
        return attribute_of(value, e.text, budget_);
      case Kind::item: {
        const Value index = value_of(*e.items[1]);
        line_ = e.line;
        return item_of(value, index, budget_);
      }
      case Kind::slice:
        return slice_of(e, value);
      default:
        return applied(e, std::move(value));
    }
  }

  Value joined(const Value& a, const Value& b) {
    Writer out(budget_);
    print(a, out);
    print(b, out);
    return make_text(budget_, out.take());
  }

  bool comparison(const Expression& e, Value left) {
    for (std::size_t i = 0; i < e.comparisons.size(); ++i) {
      Value right = value_of(*e.items[i + 1]);
      line_ = e.line;
      if (!compared(e.comparisons[i], left, right, budget_)) {
        return false;
      }
      left = std::move(right);
    }
    return true;
  }

  List all_of(const Expression& e) {
    List all;
    all.reserve(e.items.size());
    for (const Expression* const item : e.items) {
      all.push_back(value_of(*item));
    }
    return all;
  }

  Value dict(const Expression& e) {
    Dict made;
    for (std::size_t i = 0; i + 1 < e.items.size(); i += 2) {
      const Value name = value_of(*e.items[i]);
      made.set(name.text(), value_of(*e.items[i + 1]));
    }
    return make_dict(budget_, std::move(made));
  }

  Value slice_of(const Expression& e, const Value& object) {
    const auto part = [&](std::size_t i) {
      return e.items[i] != nullptr ? value_of(*e.items[i]) : Value();
    };
    const Value first = part(1);
    const Value last = part(2);
    const Value by = part(3);
    line_ = e.line;
    if (object.is_undefined()) {
      throw Problem(fmt::format("a part of {}", object.kind()));
    }
    return sliced(object, first, last, by, budget_);
  }

  Value applied(const Expression& e, Value object) {
    Arguments arguments;
    const bool is_call = e.kind == Kind::call;
    if (!is_call) {
      arguments.values.push_back(object);
    }
    for (std::size_t i = 1; i < e.items.size(); ++i) {
      arguments.values.push_back(value_of(*e.items[i]));
    }
    for (const auto& [name, value] : e.named) {
      arguments.named.emplace_back(name, value_of(*value));
    }
    line_ = e.line;
    if (e.signature != nullptr) {
      return call(*e.signature, std::move(arguments), budget_);
    }
    if (!is_call) {
      if (const Signature* const method = method_of(object, e.text)) {
        return call(*method, std::move(arguments), budget_);
      }
      object = attribute_of(object, e.text, budget_);
      arguments.values.erase(arguments.values.begin());
    }
    if (object.callable() == nullptr) {
      throw Problem(is_call ? fmt::format("a call of {}", object.kind())
                            : fmt::format("it has no method .{}()", e.text));
    }
    Value result = object.callable()->call(arguments);
    line_ = e.line;
    return result;
  }

  const Template& source_;
  Budget budget_;  // outlives every value
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::pair<std::string, Value>> functions_;
  Scopes scopes_;
  const Messages messages_;
  const std::string& now_;
  Output out_;
  std::vector<std::shared_ptr<Loop>> loops_;  // that are being executed, from outside
  std::vector<const Expression*> chain_;      // what is still to be done with a value
  int line_ = 1;
  int macros_ = 0;  // that are being executed
};

}  // namespace

Output run(const Template& source, const Dict& variables, const List& messages,
           const std::string& now) {
  return Interpreter(source, variables, messages, now).run();
}

}  // namespace tessera::data::jinja
