#include "jinja/functions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tessera/shown.hpp>

namespace tessera::data::jinja {
namespace {

std::string_view word(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(' '), rest.size());
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return taken;
}

/// The argument by its place or its name, which is taken out of them.
std::optional<Value> take(Arguments& arguments, std::size_t& next, std::string_view name,
                          const Signature& what) {
  const auto named =
      std::ranges::find(arguments.named, name, &std::pair<std::string, Value>::first);
  if (next < arguments.values.size()) {
    if (named != arguments.named.end()) {
      throw Problem(fmt::format("the argument '{}' of '{}' is given twice", name, what.name));
    }
    return arguments.values[next++];
  }
  if (named == arguments.named.end()) {
    return std::nullopt;
  }
  Value value = std::move(named->second);
  arguments.named.erase(named);
  return value;
}

/// Whether a text of `safe` may be its object: elsewhere Jinja's result would escape other texts.
bool takes_markup(std::string_view name) {
  constexpr std::array names = {"safe", "string", "default", "d",       "length", "count",
                                "e",    "escape", "tojson",  "defined", "string"};
  return std::ranges::find(names, name) != names.end();
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// Members that Python's objects have and this code has not. `changes`: of those that Jinja's
/// sandbox hides, as they change the object.
bool is_python_member(const Value& object, std::string_view name, bool changes) {
  if (object.is_text()) {
    return !changes &&
           is_one_of(name, {"casefold",    "center",   "encode",    "expandtabs",   "format",
                            "format_map",  "isascii",  "isdecimal", "isidentifier", "isnumeric",
                            "isprintable", "istitle",  "ljust",     "maketrans",    "rindex",
                            "rjust",       "swapcase", "translate", "zfill",        "index"});
  }
  if (object.is_dict()) {
    return changes ? is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"})
                   : name == "fromkeys";
  }
  if (object.is_form(SequenceKind::list)) {
    return changes && is_one_of(name, {"append", "clear", "extend", "insert", "pop", "remove",
                                       "reverse", "sort"});
  }
  if (object.is_sequence()) {
    return !changes && is_one_of(name, {"start", "stop", "step", "mapping", "isdisjoint", "send",
                                        "throw", "close"});
  }
  return !changes &&
         ((object.is_number() || object.is_big())
              ? is_one_of(name, {"as_integer_ratio", "bit_count", "bit_length", "conjugate",
                                 "denominator", "from_bytes", "fromhex", "hex", "imag",
                                 "is_integer", "numerator", "real", "to_bytes"})
              : object.callable() != nullptr);
}

/// OBJECT.NAME as a value: a method with its object, or nothing.
std::optional<Value> method_value(const Value& object, const std::string& name, Budget& budget) {
  if (const Signature* const method = method_of(object, name)) {
    return Value::Data(std::make_shared<const Callable>(
        budget, name,
        [method, object, &budget](const Arguments& arguments) {
          Arguments all = arguments;
          all.values.insert(all.values.begin(), object);
          return call(*method, std::move(all), budget);
        },
        object.depth()));
  }
  if (is_python_member(object, name, false)) {
    throw Problem(fmt::format("the member '{}' of {} is not supported", name, object.kind()));
  }
  return std::nullopt;
}

Value no_entry() {
  static const Value none = Value::undefined("the entry");
  return none;
}

Value loop_member(const Loop& loop, std::string_view name) {
  const auto at = static_cast<std::int64_t>(loop.at);
  const std::int64_t count = std::ssize(loop.entries);
  if (name == "previtem" || name == "nextitem") {
    const std::int64_t which = name == "previtem" ? at - 1 : at + 1;
    return which < 0 || which >= count ? no_entry() : loop.entries[static_cast<std::size_t>(which)];
  }
  if (name == "changed" || name == "cycle") {
    throw Problem(fmt::format("'loop.{}' is not supported", name));
  }
  return name == "index0"      ? Value(at)
         : name == "index"     ? Value(at + 1)
         : name == "first"     ? Value(at == 0)
         : name == "last"      ? Value(at + 1 == count)
         : name == "length"    ? Value(count)
         : name == "revindex"  ? Value(count - at)
         : name == "revindex0" ? Value(count - at - 1)
         : name == "depth"     ? Value(std::int64_t{1})
         : name == "depth0"    ? Value(std::int64_t{0})
                               : no_entry();
}

[[noreturn]] void refuse_member(const Value& object, std::string_view name) {
  throw Problem(fmt::format("the member '{}' of {}", shown(name, 40), object.kind()));
}

const Value* member_of(const Value& object, std::string_view name) {
  return object.is_dict()            ? object.dict().find(name)
         : object.space() != nullptr ? object.space()->members.find(name)
                                     : nullptr;
}

}  // namespace

Value call(const Signature& what, Arguments arguments, Budget& budget) {
  budget.step(1 + arguments.values.size() + arguments.named.size());
  if (arguments.values[0].is_markup() && !takes_markup(what.name)) {
    throw Problem(fmt::format("'{}' of a text of 'safe' or 'escape' is not supported", what.name));
  }
  std::vector<std::optional<Value>> bound = {arguments.values[0]};
  std::size_t next = 1;
  bool takes_others = false;
  for (std::string_view rest = what.parameters; !rest.empty();) {
    std::string_view name = word(rest);
    if (name == "*") {
      takes_others = true;
      continue;
    }
    const bool may_be_missing = name.ends_with('?');
    name.remove_suffix(may_be_missing ? 1 : 0);
    bound.push_back(take(arguments, next, name, what));
    if (!bound.back() && !may_be_missing) {
      throw Problem(fmt::format("the argument '{}' of '{}' is missing", name, what.name));
    }
  }
  arguments.values.erase(arguments.values.begin(),
                         arguments.values.begin() + static_cast<std::ptrdiff_t>(next));
  if (!takes_others && !arguments.named.empty()) {
    throw Problem(fmt::format("the argument '{}' of '{}' is not supported",
                              shown(arguments.named[0].first, 40), what.name));
  }
  if (!takes_others && !arguments.values.empty()) {
    throw Problem(fmt::format("too many arguments of '{}' (expected at most {})", what.name,
                              bound.size() - 1));
  }
  return what.body(Call(budget, std::move(bound), std::move(arguments)));
}

bool contains(const Value& whole, const Value& needle, Budget& budget) {
  if (whole.is_undefined()) {
    return false;
  }
  if (whole.is_text()) {
    return find(whole.text(), needle.text(), 0, budget) != std::string::npos;
  }
  const bool names = whole.is_dict() || whole.is_form(SequenceKind::keys);
  if (names && (needle.is_dict() || needle.is_form(SequenceKind::list))) {
    throw Problem(fmt::format("{} cannot be the name of a member", needle.kind()));
  }
  if (whole.is_dict()) {
    return needle.is_text() && whole.dict().find(needle.text()) != nullptr;
  }
  if (whole.is_form(SequenceKind::generator)) {
    return std::ranges::any_of(entries_of(whole, budget),
                               [&](const Value& one) { return equal(one, needle, budget); });
  }
  return std::ranges::any_of(whole.sequence().entries,
                             [&](const Value& one) { return equal(one, needle, budget); });
}

Value attribute_of(const Value& object, const std::string& name, Budget& budget) {
  budget.step();
  if (object.is_undefined()) {
    refuse_member(object, name);
  }
  if (object.loop() != nullptr) {
    return loop_member(*object.loop(), name);
  }
  if (object.space() == nullptr) {
    if (auto method = method_value(object, name, budget)) {
      return *std::move(method);
    }
    if (is_python_member(object, name, true)) {
      return no_entry();
    }
  }
  const Value* const found = member_of(object, name);
  return found != nullptr ? *found : Value::undefined(shown(name, 40));
}

Value item_of(const Value& object, const Value& index, Budget& budget) {
  budget.step();
  if (object.is_undefined()) {
    throw Problem(fmt::format("an entry of {}", object.kind()));
  }
  if (index.is_text()) {
    const Value* const found = member_of(object, index.text());
    return found != nullptr ? *found : attribute_of(object, index.text(), budget);
  }
  const bool has_places = object.is_text() || object.is_form(SequenceKind::list) ||
                          object.is_form(SequenceKind::tuple) ||
                          object.is_form(SequenceKind::range);
  if (!has_places || !index.is_whole()) {
    return no_entry();
  }
  const auto place = [&](std::size_t size) -> std::optional<std::size_t> {
    const std::int64_t count = static_cast<std::int64_t>(size);
    const std::int64_t at = index.whole() < 0 ? index.whole() + count : index.whole();
    return at < 0 || at >= count ? std::nullopt : std::optional(static_cast<std::size_t>(at));
  };
  if (object.is_sequence()) {
    const List& entries = object.sequence().entries;
    const auto at = place(entries.size());
    return at ? entries[*at] : no_entry();
  }
  const Characters characters(object.text(), budget);
  const auto at = place(characters.size());
  return at ? make_text(budget, std::string(characters[*at])) : no_entry();
}

List entries_of(const Value& value, Budget& budget) {
  List all;
  if (value.is_undefined()) {
    return all;
  }
  if (value.is_dict()) {
    for (const auto& member : value.dict().members()) {
      all.push_back(make_text(budget, member.first));
    }
  } else if (value.is_text()) {
    const Characters characters(value.text(), budget);
    for (std::size_t i = 0; i < characters.size(); ++i) {
      all.push_back(make_text(budget, std::string(characters[i])));
    }
  } else {
    const Sequence& sequence = value.sequence();
    if (sequence.form == SequenceKind::generator && std::exchange(sequence.used, true)) {
      throw Problem(
          "a sequence that is made step by step is used twice, the second time it is empty",
          "make it a list with '| list'");
    }
    budget.check_room(sequence.entries.size() * sizeof(Value));
    all = sequence.entries;
  }
  budget.step(all.size());
  return all;
}

}  // namespace tessera::data::jinja
