// Filters, and the methods of lists and objects.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>

#include "jinja/texts.hpp"

namespace tessera::data::jinja {
namespace {

/// A text, or what Jinja's filters make of other values.
std::string text_of(const Call& c) { return printed(c.object(), c.budget); }
List entries(const Call& c) { return entries_of(c.object(), c.budget); }

template <std::string (*change)(std::string_view, Budget&)>
Value cased(const Call& c) {
  return c.text(change(text_of(c), c.budget));
}

Value trim(const Call& c) {
  const Value set = c.get(1);
  const std::string text = text_of(c);
  c.budget.read(text.size() * (set.is_none() ? 1 : 1 + set.text().size()));
  return c.text(std::string(stripped(text, set.is_none() ? nullptr : &set.text(), true, true)));
}

Value length(const Call& c) {
  const Value& value = c.object();
  if (value.is_form(SequenceKind::generator)) {
    throw Problem(fmt::format("{} has no length", value.kind()), "make it a list with '| list'");
  }
  if (value.is_text()) {
    c.budget.read(value.text().size());
    return count_characters(value.text());
  }
  return value.is_undefined() ? std::int64_t{0}
         : value.is_dict()    ? std::ssize(value.dict().members())
                              : std::ssize(value.sequence().entries);
}

/// The entry that `attribute` names: a name, an index, or several with dots between them.
class Attribute {
 public:
  Attribute(const Value& attribute, Value otherwise) : otherwise_(std::move(otherwise)) {
    if (!attribute.is_text()) {
      parts_.emplace_back(attribute.whole());
      return;
    }
    std::string_view rest = attribute.text();
    if (rest.find(',') != std::string_view::npos) {
      throw Problem("several attributes with commas between them are not supported");
    }
    while (true) {
      const std::size_t end = std::min(rest.find('.'), rest.size());
      const std::string part(rest.substr(0, end));
      const bool is_index =
          !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      parts_.push_back(is_index ? Value::whole_number(part) : Value::constant(part));
      if (end == rest.size()) {
        break;
      }
      if (std::ssize(parts_) == Limits::depth) {
        throw Problem(
            fmt::format("an attribute has too many parts (expected at most {})", Limits::depth));
      }
      rest.remove_prefix(end + 1);
    }
  }

  Value of(Value value, Budget& budget) const {
    for (const Value& part : parts_) {
      value = item_of(value, part, budget);
      if (value.is_undefined() && !otherwise_.is_none()) {
        value = otherwise_;
      }
    }
    return value;
  }

 private:
  List parts_;
  Value otherwise_;
};

/// The entry itself, or its attribute where there is the argument `place`.
class EntryKey {
 public:
  EntryKey(const Call& c, std::size_t place) {
    if (!c.get(place).is_none()) {
      attribute_.emplace(c[place], Value());
    }
  }
  Value of(const Value& entry, Budget& budget) const {
    return attribute_ ? attribute_->of(entry, budget) : entry;
  }

 private:
  std::optional<Attribute> attribute_;
};

/// An argument of tojson's 'indent' or 'separators'.
JsonStyle json_style(const Call& c) {
  JsonStyle style;
  style.ascii = c.get(1).truth();
  const Value indent = c.get(2);
  if (!indent.is_none()) {
    style.indents = true;
    style.item = ",";
    style.indent =
        indent.is_text()
            ? indent.text()
            : std::string(
                  static_cast<std::size_t>(std::clamp<std::int64_t>(indent.whole(), 0, 1000)), ' ');
    if (!indent.is_text() && indent.whole() > 1000) {
      throw Problem("the indent of 'tojson' is too large (expected at most 1000)");
    }
  }
  const Value separators = c.get(3);
  if (!separators.is_none()) {
    const List& both = separators.sequence().entries;
    if (both.size() != 2) {
      throw Problem("'separators' of 'tojson' must be two texts");
    }
    style.item = both[0].text();
    style.member = both[1].text();
  }
  style.sorts = c.get(4).truth();
  return style;
}

Value json(const Call& c) { return c.text(to_json(c.object(), json_style(c), c.budget)); }

/// As llama.cpp has it: templates read arguments of calls that are texts.
Value read_json(const Call& c) {
  const std::string text = text_of(c);
  c.budget.read(text.size());
  const ParsedJson parsed = parse_json_object("{\"value\":" + text + "}");
  if (!parsed.problem.empty() || parsed.value.size() != 1) {
    throw Problem("'from_json' was given a text that is not JSON");
  }
  return from_json(text, c.budget);
}

Value join(const Call& c) {
  const std::string between = c.has(1) ? printed(c[1], c.budget) : "";
  const EntryKey chosen(c, 2);
  Writer out(c.budget);
  bool first = true;
  for (const Value& entry : entries(c)) {
    out.add(first ? std::string_view() : std::string_view(between));
    print(chosen.of(entry, c.budget), out);
    first = false;
  }
  return c.text(out.take());
}

List members_of(const Call& c) {
  List all;
  for (const auto& [name, value] : c.object().dict().members()) {
    c.budget.step();
    all.push_back(c.list({c.text(name), value}, SequenceKind::tuple));
  }
  return all;
}
Value items_filter(const Call& c) {
  return c.list(c.object().is_undefined() ? List() : members_of(c), SequenceKind::generator);
}
Value items(const Call& c) { return c.list(members_of(c), SequenceKind::items); }
Value keys(const Call& c) { return c.list(entries(c), SequenceKind::keys); }
Value values(const Call& c) {
  List all;
  for (const auto& member : c.object().dict().members()) {
    c.budget.step();
    all.push_back(member.second);
  }
  return c.list(std::move(all), SequenceKind::values);
}
Value get(const Call& c) {
  const Value* found = c[1].is_text() ? c.object().dict().find(c[1].text()) : nullptr;
  return found != nullptr ? *found : c.get(2);
}
Value itself(const Call& c) { return c.object(); }

Value index_in(const Call& c) {
  const List& all = c.object().sequence().entries;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (equal(all[i], c[1], c.budget)) {
      return static_cast<std::int64_t>(i);
    }
  }
  throw Problem("the value is not in the list");
}
Value count_in(const Call& c) {
  return static_cast<std::int64_t>(std::ranges::count_if(
      c.object().sequence().entries, [&](const Value& one) { return equal(one, c[1], c.budget); }));
}

Value otherwise(const Call& c) {
  const bool absent = c.object().is_undefined() || (c.get(2).truth() && !c.object().truth());
  return absent ? c.get(1, c.text("")) : c.object();
}

Value first(const Call& c) {
  const List all = entries(c);
  return all.empty() ? Value::undefined("the first entry") : all.front();
}
Value last(const Call& c) {
  if (c.object().is_form(SequenceKind::generator)) {
    throw Problem(fmt::format("'last' of {} is not supported", c.object().kind()),
                  "make it a list with '| list'");
  }
  const List all = entries(c);
  return all.empty() ? Value::undefined("the last entry") : all.back();
}
Value list(const Call& c) { return c.list(entries(c)); }
Value string(const Call& c) { return c.object().is_text() ? c.object() : c.text(text_of(c)); }

Value markup(const Call& c, std::string text) {
  return Value::Data(std::make_shared<const Text>(&c.budget, std::move(text), true));
}
Value safe(const Call& c) { return c.object().is_markup() ? c.object() : markup(c, text_of(c)); }
Value escape(const Call& c) {
  if (c.object().is_markup()) {
    return c.object();
  }
  Writer out(c.budget);
  for (const char character : text_of(c)) {
    switch (character) {
      case '&':
        out.add("&amp;");
        break;
      case '<':
        out.add("&lt;");
        break;
      case '>':
        out.add("&gt;");
        break;
      case '\'':
        out.add("&#39;");
        break;
      case '"':
        out.add("&#34;");
        break;
      default:
        out.add(character);
    }
  }
  return markup(c, out.take());
}

/// The digits that Python reads as a number: without white space around them, and without single
/// underscores between digits. Problem: digits that are not ASCII.
std::string digits_of(const std::string& text) {
  std::string out;
  const std::string_view inner = stripped(text, nullptr, true, true);
  for (std::size_t i = 0; i < inner.size(); ++i) {
    if (static_cast<unsigned char>(inner[i]) >= 0x80) {
      throw Problem("a number in a text that is not ASCII is not supported");
    }
    const bool between = i > 0 && i + 1 < inner.size() && std::isalnum(inner[i - 1]) != 0 &&
                         std::isalnum(inner[i + 1]) != 0;
    if (inner[i] != '_' || !between) {
      out += inner[i];
    }
  }
  return out;
}

std::optional<double> real_of(const std::string& text) {
  std::string digits = digits_of(text);
  const bool minus = digits.starts_with('-');
  if (minus || digits.starts_with('+')) {
    digits.erase(0, 1);
  }
  double number = 0;
  const char* const last = digits.data() + digits.size();
  const bool begins = !digits.empty() && (std::isdigit(digits[0]) != 0 || digits[0] == '.');
  std::ranges::transform(digits, digits.begin(), [](unsigned char c) { return std::tolower(c); });
  if (digits == "nan") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (digits == "inf" || digits == "infinity") {
    number = std::numeric_limits<double>::infinity();
  } else {
    const auto [end, error] = std::from_chars(digits.data(), last, number);
    if (error == std::errc::result_out_of_range) {
      throw Problem("a number is out of range");
    }
    if (!begins || error != std::errc() || end != last) {
      return std::nullopt;
    }
  }
  return minus ? -number : number;
}

/// Python's int(text, base).
std::optional<Value> whole_of(const std::string& text, std::int64_t base, Budget& budget) {
  std::string digits = digits_of(text);
  const bool minus = digits.starts_with('-');
  if (minus || digits.starts_with('+')) {
    digits.erase(0, 1);
  }
  const auto prefix = [&](char letter, std::int64_t of) {
    const bool has = digits.size() > 2 && digits[0] == '0' && std::tolower(digits[1]) == letter;
    if (has && (base == of || base == 0)) {
      digits.erase(0, 2);
      base = of;
    }
  };
  prefix('x', 16);
  prefix('o', 8);
  prefix('b', 2);
  if (base == 0 && digits.starts_with('0') && digits.find_first_not_of('0') != std::string::npos) {
    return std::nullopt;
  }
  base = base == 0 ? 10 : base;
  if (base < 2 || base > 36) {
    throw Problem("'base' of 'int' must be 0 or 2 to 36");
  }
  const bool whole = !digits.empty() && std::ranges::all_of(digits, [&](unsigned char c) {
    const int digit = std::isdigit(c) != 0   ? c - '0'
                      : std::isalpha(c) != 0 ? std::tolower(c) - 'a' + 10
                                             : 99;
    return digit < base;
  });
  if (!whole) {
    return std::nullopt;
  }
  if (base == 10) {
    budget.read(digits.size());
    return Value::whole_number((minus ? "-" : "") + digits, &budget);
  }
  std::int64_t number = 0;
  digits.insert(0, minus ? "-" : "");
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  if (error != std::errc()) {
    throw Problem("a number is too large (expected at most 64 bits)");
  }
  return number;
}

/// Python's int(number).
Value truncated(double number, Budget& budget) {
  return Value::whole_number(fmt::format("{:.0f}", std::trunc(number)), &budget);
}

void refuse_undefined(const Value& value) {
  if (value.is_undefined()) {
    throw Problem(fmt::format("a number of {}", value.kind()));
  }
}

Value whole(const Call& c) {
  const Value& value = c.object();
  refuse_undefined(value);
  if (value.is_whole()) {
    return value.whole();
  }
  if (value.is_big()) {
    return value;
  }
  std::optional<double> real = value.is<double>() ? std::optional(value.number()) : std::nullopt;
  if (real && std::isinf(*real)) {
    throw Problem("an infinite number has no whole part");
  }
  if (value.is_text()) {
    const auto exact = whole_of(value.text(), c.get(2, Value(std::int64_t{10})).whole(), c.budget);
    if (exact) {
      return *exact;
    }
    real = real_of(value.text());
  }
  return real && std::isfinite(*real) ? truncated(*real, c.budget)
                                      : c.get(1, Value(std::int64_t{0}));
}
Value real(const Call& c) {
  const Value& value = c.object();
  refuse_undefined(value);
  if (value.is_number()) {
    return value.number();
  }
  const std::string* const text = value.is_text()  ? &value.text()
                                  : value.is_big() ? &value.digits()
                                                   : nullptr;
  const std::optional<double> number = text != nullptr ? real_of(*text) : std::nullopt;
  return number ? Value(*number) : c.get(1, Value(0.0));
}
Value absolute(const Call& c) {
  const Value& value = c.object();
  const bool minus = value.is_big()     ? value.digits().starts_with('-')
                     : value.is_whole() ? value.whole() < 0
                                        : std::signbit(value.number());
  return minus ? negated(value, c.budget) : value.is<bool>() ? Value(value.whole()) : value;
}
Value rounded(const Call& c) {
  const Value& value = c.object();
  const std::int64_t digits = c.get(1, Value(std::int64_t{0})).whole();
  const std::string method = c.has(2) ? c[2].text() : "common";
  if (digits < 0 || digits > 300) {
    throw Problem("'precision' of 'round' must be 0 to 300");
  }
  if (method == "common") {
    if (!value.is<double>()) {
      return value.is_big() ? value : Value(value.whole());
    }
    double number = value.number();
    if (std::isfinite(number)) {
      number = *real_of(fmt::format("{:.{}f}", number, digits));
    }
    return number;
  }
  if (method != "ceil" && method != "floor") {
    throw Problem("'method' of 'round' must be 'common', 'ceil' or 'floor'");
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = value.number() * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value reverse(const Call& c) {
  const Value& value = c.object();
  if (value.is_text()) {
    const Value none;
    return sliced(value, none, none, Value(std::int64_t{-1}), c.budget);
  }
  List all = entries(c);
  std::ranges::reverse(all);
  return c.list(std::move(all), value.is_form(SequenceKind::generator) ? SequenceKind::list
                                                                       : SequenceKind::generator);
}

Value replace(const Call& c) {
  return c.text(replaced(text_of(c), printed(c[1], c.budget), printed(c[2], c.budget),
                         c.get(3).is_none() ? -1 : c[3].whole(), c.budget));
}

Value indent(const Call& c) {
  const Value width = c.get(1, Value(std::int64_t{4}));
  if (!width.is_text() && width.whole() > 1000) {
    throw Problem("the width of 'indent' is too large (expected at most 1000)");
  }
  const std::string blanks =
      width.is_text()
          ? width.text()
          : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width.whole(), 0)), ' ');
  const bool on_blank = c.get(3).truth();
  const std::string text = c.object().text() + "\n";  // Jinja's own step, for a last line
  Writer out(c.budget);
  bool is_first = true;
  for (const std::string_view line : lines_of(text, false, c.budget)) {
    const bool indents = is_first ? c.get(2).truth() : on_blank || !line.empty();
    out.add(is_first ? "" : "\n");
    out.add(indents ? std::string_view(blanks) : std::string_view());
    out.add(line);
    is_first = false;
  }
  return c.text(out.take());
}

// Lists.

/// What Jinja sorts and compares by: texts in lower case, unless case matters.
Value sort_key(const Value& value, bool case_matters, Budget& budget) {
  return value.is_text() && !case_matters ? make_text(budget, lower_case(value.text(), budget))
                                          : value;
}

List sorted(List all, const std::vector<Value>& by, bool reversed, Budget& budget) {
  std::vector<std::size_t> order(all.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return reversed ? compare(by[a], by[b], budget) > 0 : compare(by[a], by[b], budget) < 0;
  });
  List out;
  for (const std::size_t i : order) {
    out.push_back(std::move(all[i]));
  }
  return out;
}

Value sort(const Call& c) {
  List all = entries(c);
  const EntryKey chosen(c, 3);
  List by;
  for (const Value& entry : all) {
    by.push_back(sort_key(chosen.of(entry, c.budget), c.get(2).truth(), c.budget));
  }
  return c.list(sorted(std::move(all), by, c.get(1).truth(), c.budget));
}

Value dict_sort(const Call& c) {
  const std::string which = c.has(2) ? c[2].text() : "key";
  if (which != "key" && which != "value") {
    throw Problem("'by' of 'dictsort' must be 'key' or 'value'");
  }
  List all = members_of(c);
  List by;
  for (const Value& member : all) {
    by.push_back(
        sort_key(member.sequence().entries[which == "key" ? 0 : 1], c.get(1).truth(), c.budget));
  }
  return c.list(sorted(std::move(all), by, c.get(3).truth(), c.budget));
}

Value unique(const Call& c) {
  const EntryKey chosen(c, 2);
  List out;
  List seen;
  for (const Value& entry : entries(c)) {
    const Value key = sort_key(chosen.of(entry, c.budget), c.get(1).truth(), c.budget);
    if (key.is_sequence() || key.is_dict()) {
      throw Problem(fmt::format("'unique' of {} is not supported", key.kind()));
    }
    if (std::ranges::none_of(seen, [&](const Value& one) { return equal(one, key, c.budget); })) {
      seen.push_back(key);
      out.push_back(entry);
    }
  }
  return c.list(std::move(out), SequenceKind::generator);
}

template <bool largest>
Value extreme(const Call& c) {
  const EntryKey chosen(c, 2);
  const List all = entries(c);
  Value best = Value::undefined("an entry of an empty list");
  Value best_key;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Value key = sort_key(chosen.of(all[i], c.budget), c.get(1).truth(), c.budget);
    const int order = i == 0 ? 0 : compare(key, best_key, c.budget);
    if (i == 0 || (largest ? order > 0 : order < 0)) {
      best = all[i];
      best_key = key;
    }
  }
  return best;
}

Value sum(const Call& c) {
  const EntryKey chosen(c, 1);
  Value total = c.get(2, Value(std::int64_t{0}));
  if (total.is_text()) {
    throw Problem("'sum' of texts is not supported; use 'join'");
  }
  for (const Value& entry : entries(c)) {
    total = computed(Operation::add, total, chosen.of(entry, c.budget), c.budget);
  }
  return total;
}

Value batch(const Call& c) {
  const std::int64_t count = c[1].whole();
  if (count < 1) {
    throw Problem("'linecount' of 'batch' must be at least 1");
  }
  List out;
  List part;
  for (const Value& entry : entries(c)) {
    if (std::ssize(part) == count) {
      out.push_back(c.list(std::exchange(part, {})));
    }
    part.push_back(entry);
  }
  while (!part.empty() && !c.get(2).is_none() && std::ssize(part) < count) {
    c.budget.step();
    c.budget.check_room(part.size() * sizeof(Value));
    part.push_back(c[2]);
  }
  if (!part.empty()) {
    out.push_back(c.list(std::move(part)));
  }
  return c.list(std::move(out), SequenceKind::generator);
}

/// A filter or test by the text of an argument.
template <const Signature* (*find)(std::string_view)>
const Signature& named(const Value& name, const char* what) {
  const Signature* const found = find(name.text());
  if (found == nullptr) {
    throw Problem(fmt::format("the {} '{}' is not supported", what, shown(name.text(), 40)));
  }
  return *found;
}

/// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Value select(const Call& c) {
  const std::size_t at = by_attribute ? 1 : 0;
  const List& given = c.rest.values;
  if (given.size() < at) {
    throw Problem("the argument 'attribute' is missing");
  }
  std::optional<Attribute> attribute;
  if (by_attribute) {
    attribute.emplace(given[0], Value());
  }
  const Signature* const test = given.size() > at ? &named<find_test>(given[at], "test") : nullptr;
  if (test == nullptr && !c.rest.named.empty()) {
    throw Problem("an argument without a test is not supported");
  }
  List out;
  for (const Value& entry : entries(c)) {
    const Value chosen = attribute ? attribute->of(entry, c.budget) : entry;
    Arguments tested;
    if (test != nullptr) {
      tested.values.push_back(chosen);
      tested.values.insert(tested.values.end(), given.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                           given.end());
      tested.named = c.rest.named;
    }
    if ((test == nullptr ? chosen : call(*test, std::move(tested), c.budget)).truth() == keeps) {
      out.push_back(entry);
    }
  }
  return c.list(std::move(out), SequenceKind::generator);
}

Value map_attribute(const Call& c) {
  Value otherwise_value;
  std::optional<Value> name;
  for (const auto& [argument, value] : c.rest.named) {
    if (argument == "attribute") {
      name = value;
    } else if (argument == "default") {
      otherwise_value = value;
    } else {
      throw Problem(
          fmt::format("the argument '{}' of 'map' is not supported", shown(argument, 40)));
    }
  }
  if (!name) {
    throw Problem("the argument 'filter' or 'attribute' of 'map' is missing");
  }
  const Attribute attribute(*name, otherwise_value);
  List out;
  for (const Value& entry : entries(c)) {
    out.push_back(attribute.of(entry, c.budget));
  }
  return c.list(std::move(out), SequenceKind::generator);
}

Value map(const Call& c) {
  const List& given = c.rest.values;
  if (given.empty()) {
    return map_attribute(c);
  }
  const Signature& filter = named<find_filter>(given[0], "filter");
  List out;
  for (const Value& entry : entries(c)) {
    Arguments one{{entry}, c.rest.named};
    one.values.insert(one.values.end(), given.begin() + 1, given.end());
    out.push_back(call(filter, std::move(one), c.budget));
  }
  return c.list(std::move(out), SequenceKind::generator);
}

const Signature* find(const std::vector<Signature>& all, std::string_view name) {
  const auto at = std::ranges::find(all, name, &Signature::name);
  return at == all.end() ? nullptr : &*at;
}

const std::vector<Signature>& list_methods() {
  static const std::vector<Signature> methods = {
      {"copy", "", itself}, {"count", "value", count_in}, {"index", "value", index_in}};
  return methods;
}

const std::vector<Signature>& dict_methods() {
  static const std::vector<Signature> methods = {{"copy", "", itself},
                                                 {"get", "key default?", get},
                                                 {"items", "", items},
                                                 {"keys", "", keys},
                                                 {"values", "", values}};
  return methods;
}

}  // namespace

const Signature* find_filter(std::string_view name) {
  static const std::vector<Signature> filters = {
      {"abs", "", absolute},
      {"batch", "linecount fill_with?", batch},
      {"capitalize", "", cased<capitalized>},
      {"count", "", length},
      {"d", "default_value? boolean?", otherwise},
      {"default", "default_value? boolean?", otherwise},
      {"dictsort", "case_sensitive? by? reverse?", dict_sort},
      {"e", "", escape},
      {"escape", "", escape},
      {"first", "", first},
      {"float", "default?", real},
      {"indent", "width? first? blank?", indent},
      {"from_json", "", read_json},
      {"int", "default? base?", whole},
      {"items", "", items_filter},
      {"join", "d? attribute?", join},
      {"last", "", last},
      {"length", "", length},
      {"list", "", list},
      {"lower", "", cased<lower_case>},
      {"map", "*", map},
      {"max", "case_sensitive? attribute?", extreme<true>},
      {"min", "case_sensitive? attribute?", extreme<false>},
      {"reject", "*", select<false, false>},
      {"rejectattr", "*", select<true, false>},
      {"replace", "old new count?", replace},
      {"reverse", "", reverse},
      {"round", "precision? method?", rounded},
      {"safe", "", safe},
      {"select", "*", select<false, true>},
      {"selectattr", "*", select<true, true>},
      {"sort", "reverse? case_sensitive? attribute?", sort},
      {"string", "", string},
      {"sum", "attribute? start?", sum},
      {"title", "", cased<title_of_words>},
      {"tojson", "ensure_ascii? indent? separators? sort_keys?", json},
      {"trim", "chars?", trim},
      {"unique", "case_sensitive? attribute?", unique},
      {"upper", "", cased<upper_case>}};
  return find(filters, name);
}

bool is_method(std::string_view name) {
  return find(text_methods(), name) != nullptr || find(list_methods(), name) != nullptr ||
         find(dict_methods(), name) != nullptr;
}

const Signature* method_of(const Value& object, std::string_view name) {
  return object.is_text()                     ? find(text_methods(), name)
         : object.is_dict()                   ? find(dict_methods(), name)
         : object.is_form(SequenceKind::list) ? find(list_methods(), name)
         : object.is_form(SequenceKind::tuple) && (name == "count" || name == "index")
             ? find(list_methods(), name)
             : nullptr;
}

}  // namespace tessera::data::jinja
