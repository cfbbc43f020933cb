#include "jinja/functions.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <system_error>

namespace tessera::data::jinja {
namespace {

/// An argument by its place or its name, or the default.
Value argument(const Arguments& all, std::size_t which, const char* name, Value otherwise) {
  if (which < all.values.size()) {
    return all.values[which];
  }
  for (const auto& [given, value] : all.named) {
    if (given == name) {
      return value;
    }
  }
  return otherwise;
}

Value argument(const Arguments& all, std::size_t which, const char* name) {
  const bool given =
      which < all.values.size() ||
      std::ranges::find(all.named, name, &std::pair<std::string, Value>::first) != all.named.end();
  if (!given) {
    throw Problem(fmt::format("the argument '{}' is missing", name));
  }
  return argument(all, which, name, Value());
}

/// A text, or what Jinja's filters make of other values.
std::string text_of(const Value& value) { return value.printed(); }

/// The text with each character changed by `change(character, is_first_of_word)`.
template <class Change>
std::string changed(const std::string& text, Change change) {
  std::string out;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto rest = static_cast<utf8proc_ssize_t>(text.size());
  bool begins = true;
  while (rest > 0) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(at, rest, &c);
    if (used <= 0) {
      break;
    }
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count = utf8proc_encode_char(change(c, begins), bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
    const auto category = utf8proc_category(c);
    begins = !(category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO);
    at += used;
    rest -= used;
  }
  return out;
}

Value upper(const Arguments& a) {
  return changed(text_of(a.values[0]), [](auto c, bool) { return utf8proc_toupper(c); });
}
Value lower(const Arguments& a) {
  return changed(text_of(a.values[0]), [](auto c, bool) { return utf8proc_tolower(c); });
}
Value title(const Arguments& a) {
  return changed(text_of(a.values[0]), [](auto c, bool begins) {
    return begins ? utf8proc_totitle(c) : utf8proc_tolower(c);
  });
}
Value capitalize(const Arguments& a) {
  return changed(text_of(a.values[0]), [first = true](auto c, bool) mutable {
    return std::exchange(first, false) ? utf8proc_totitle(c) : utf8proc_tolower(c);
  });
}

template <bool left, bool right>
Value strip(const Arguments& a) {
  const Value set = argument(a, 1, "chars", Value());
  const std::string text = text_of(a.values[0]);
  return std::string(stripped(text, set.is_none() ? nullptr : &set.text(), left, right));
}

Value length(const Arguments& a) {
  const Value& value = a.values[0];
  return value.is_text()   ? characters(value.text())
         : value.is_dict() ? std::ssize(value.dict().members())
                           : std::ssize(value.list());
}

Value to_json_filter(const Arguments& a) {
  const Value indent = argument(a, 1, "indent", Value());
  for (const auto& [name, value] : a.named) {
    const bool fits = name == "indent" || (name == "ensure_ascii" && !value.truth());
    if (!fits) {
      throw Problem(fmt::format("the argument '{}' of tojson is not supported", name));
    }
  }
  if (!indent.is_none() && (indent.whole() < 0 || indent.whole() > 100)) {
    throw Problem("the indent of tojson must be 0 to 100");
  }
  return to_json(a.values[0], indent.is_none() ? -1 : indent.whole());
}

Value join(const Arguments& a) {
  const std::string between = argument(a, 1, "d", Value(std::string())).printed();
  const Value attribute = argument(a, 2, "attribute", Value());
  std::string out;
  bool first = true;
  for (const Value& entry : entries_of(a.values[0])) {
    out += first ? "" : between;
    out += (attribute.is_none() ? entry : item_of(entry, attribute)).printed();
    first = false;
  }
  return out;
}

Value items(const Arguments& a) {
  if (a.values[0].is_undefined()) {
    return List();
  }
  List all;
  for (const auto& [name, value] : a.values[0].dict().members()) {
    all.emplace_back(List{Value(name), value});
  }
  return all;
}
Value keys(const Arguments& a) { return entries_of(Value(a.values[0].dict())); }
Value values(const Arguments& a) {
  List all;
  for (const auto& member : a.values[0].dict().members()) {
    all.push_back(member.second);
  }
  return all;
}
Value get(const Arguments& a) {
  const Value* found = a.values[0].dict().find(argument(a, 1, "key").text());
  return found != nullptr ? *found : argument(a, 2, "default", Value());
}

Value otherwise(const Arguments& a) {
  const bool absent = a.values[0].is_undefined() ||
                      (argument(a, 2, "boolean", Value(false)).truth() && !a.values[0].truth());
  return absent ? argument(a, 1, "default_value", Value(std::string())) : a.values[0];
}

Value first(const Arguments& a) {
  const List all = entries_of(a.values[0]);
  return all.empty() ? Value::undefined("the first entry") : all.front();
}
Value last(const Arguments& a) {
  const List all = entries_of(a.values[0]);
  return all.empty() ? Value::undefined("the last entry") : all.back();
}
Value list(const Arguments& a) { return entries_of(a.values[0]); }
Value string(const Arguments& a) { return a.values[0].printed(); }
Value unchanged(const Arguments& a) { return a.values[0]; }

Value whole(const Arguments& a) {
  const Value& value = a.values[0];
  if (value.is_number()) {
    const double number = std::trunc(value.number());
    return std::abs(number) < 0x1p62 ? Value(static_cast<std::int64_t>(number)) : Value(number);
  }
  std::int64_t number = 0;
  const std::string text =
      value.is_text() ? std::string(stripped(value.text(), nullptr, true, true)) : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool good = error == std::errc() && !text.empty() && end == text.data() + text.size();
  return good ? Value(number) : argument(a, 1, "default", Value(std::int64_t{0}));
}
Value real(const Arguments& a) {
  const Value& value = a.values[0];
  if (value.is_number()) {
    return value.number();
  }
  double number = 0;
  const std::string text =
      value.is_text() ? std::string(stripped(value.text(), nullptr, true, true)) : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool good = error == std::errc() && !text.empty() && end == text.data() + text.size();
  return good ? Value(number) : argument(a, 1, "default", Value(0.0));
}
Value absolute(const Arguments& a) {
  const Value& value = a.values[0];
  if (!value.is_whole()) {
    return std::abs(value.number());
  }
  const std::int64_t number = value.whole();
  if (number == std::numeric_limits<std::int64_t>::min()) {
    throw Problem("a number is too large");
  }
  return std::abs(number);
}

Value reverse(const Arguments& a) {
  List all = entries_of(a.values[0]);
  std::ranges::reverse(all);
  if (!a.values[0].is_text()) {
    return all;
  }
  return join({{Value(std::move(all))}, {}});
}

Value replace(const Arguments& a) {
  const std::string text = text_of(a.values[0]);
  const std::string from = argument(a, 1, "old").text();
  const std::string to = argument(a, 2, "new").text();
  const Value count = argument(a, 3, "count", Value());
  if (from.empty()) {
    throw Problem("replace: the text to replace is empty");
  }
  std::int64_t left = count.is_none() ? -1 : count.whole();
  std::string out;
  std::size_t at = 0;
  for (std::size_t next = text.find(from); next != std::string::npos && left != 0;
       next = text.find(from, at), --left) {
    out += text.substr(at, next - at) + to;
    at = next + from.size();
  }
  return out + text.substr(at);
}

/// Python's str.split and rsplit.
template <bool from_right>
Value split(const Arguments& a) {
  const std::string& text = a.values[0].text();
  const Value separator = argument(a, 1, "sep", Value());
  const std::int64_t most = argument(a, 2, "maxsplit", Value(std::int64_t{-1})).whole();
  List parts;
  if (separator.is_none()) {
    if (most >= 0) {
      throw Problem("split by white space with a limit is not supported");
    }
    std::string_view rest = stripped(text, nullptr, true, true);
    const std::vector<std::size_t> starts = character_starts(rest);
    std::size_t begin = 0;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
      const std::string_view one = rest.substr(starts[i], starts[i + 1] - starts[i]);
      if (!stripped(one, nullptr, true, false).empty()) {
        continue;
      }
      if (starts[i] > begin) {
        parts.emplace_back(std::string(rest.substr(begin, starts[i] - begin)));
      }
      begin = starts[i + 1];
    }
    if (begin < rest.size()) {
      parts.emplace_back(std::string(rest.substr(begin)));
    }
    return parts;
  }
  const std::string& mark = separator.text();
  if (mark.empty()) {
    throw Problem("split: the separator is empty");
  }
  std::vector<std::size_t> cuts;
  for (std::size_t at = text.find(mark); at != std::string::npos;
       at = text.find(mark, at + mark.size())) {
    cuts.push_back(at);
  }
  const auto kept = most < 0 ? cuts.size() : std::min(cuts.size(), static_cast<std::size_t>(most));
  const std::size_t skipped = from_right ? cuts.size() - kept : 0;
  std::size_t begin = 0;
  for (std::size_t i = skipped; i < skipped + kept; ++i) {
    parts.emplace_back(text.substr(begin, cuts[i] - begin));
    begin = cuts[i] + mark.size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

bool any_of_texts(const Value& texts, const std::function<bool(const std::string&)>& fits) {
  if (texts.is_text()) {
    return fits(texts.text());
  }
  return std::ranges::any_of(texts.list(), [&](const Value& one) { return fits(one.text()); });
}
Value starts_with(const Arguments& a) {
  return any_of_texts(argument(a, 1, "prefix"), [&](const std::string& prefix) {
    return a.values[0].text().starts_with(prefix);
  });
}
Value ends_with(const Arguments& a) {
  return any_of_texts(argument(a, 1, "suffix"), [&](const std::string& suffix) {
    return a.values[0].text().ends_with(suffix);
  });
}
Value join_method(const Arguments& a) {
  return join({{argument(a, 1, "iterable"), a.values[0]}, {}});
}
Value find_in(const Arguments& a) {
  const std::string& text = a.values[0].text();
  const std::size_t at = text.find(argument(a, 1, "sub").text());
  return at == std::string::npos ? std::int64_t{-1}
                                 : characters(std::string_view(text).substr(0, at));
}
Value count_in(const Arguments& a) {
  if (!a.values[0].is_text()) {
    return static_cast<std::int64_t>(std::ranges::count_if(
        a.values[0].list(), [&](const Value& one) { return equal(one, argument(a, 1, "value")); }));
  }
  const List parts = split<false>({{a.values[0], argument(a, 1, "sub")}, {}}).list();
  return std::ssize(parts) - 1;
}
Value split_lines(const Arguments& a) {
  List parts =
      split<false>(
          {{replace({{a.values[0], Value(std::string("\r\n")), Value(std::string("\n"))}, {}}),
            Value(std::string("\n"))},
           {}})
          .list();
  if (parts.back().text().empty()) {
    parts.pop_back();
  }
  return parts;
}
template <bool (*fits)(char)>
Value all_characters(const Arguments& a) {
  const std::string& text = a.values[0].text();
  return !text.empty() && std::ranges::all_of(text, fits);
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool keeps>
Value select(const Arguments& a) {
  const std::size_t at = by_attribute ? 2 : 1;
  TestFunction test = nullptr;
  if (a.values.size() > at) {
    test = find_test(a.values[at].text());
    if (test == nullptr) {
      throw Problem(fmt::format("the test '{}' is not supported", a.values[at].text()));
    }
  }
  List out;
  for (const Value& entry : entries_of(a.values[0])) {
    Arguments tested;
    tested.values.push_back(by_attribute ? item_of(entry, argument(a, 1, "attribute")) : entry);
    for (std::size_t i = at + 1; i < a.values.size(); ++i) {
      tested.values.push_back(a.values[i]);
    }
    if ((test == nullptr ? tested.values[0].truth() : test(tested)) == keeps) {
      out.push_back(entry);
    }
  }
  return out;
}

Value map(const Arguments& a) {
  List out;
  const Value attribute = argument(a, 9, "attribute", Value());
  FilterFunction filter = nullptr;
  if (attribute.is_none()) {
    filter = find_filter(argument(a, 1, "filter").text());
    if (filter == nullptr) {
      throw Problem(fmt::format("the filter '{}' is not supported", a.values[1].text()));
    }
  }
  for (const Value& entry : entries_of(a.values[0])) {
    if (filter == nullptr) {
      out.push_back(item_of(entry, attribute));
      continue;
    }
    Arguments one;
    one.values.push_back(entry);
    one.values.insert(one.values.end(), a.values.begin() + 2, a.values.end());
    out.push_back(filter(one));
  }
  return out;
}

Value indent(const Arguments& a) {
  const Value width = argument(a, 1, "width", Value(std::int64_t{4}));
  const bool on_first = argument(a, 2, "first", Value(false)).truth();
  const bool on_blank = argument(a, 3, "blank", Value(false)).truth();
  const std::string blanks =
      width.is_text()
          ? width.text()
          : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(width.whole(), 0, 1000)),
                        ' ');
  std::string out;
  bool is_first = true;
  const Value lines = split<false>({{Value(text_of(a.values[0])), Value(std::string("\n"))}, {}});
  for (const Value& line : lines.list()) {
    const bool indents = is_first ? on_first : on_blank || !line.text().empty();
    out += (is_first ? "" : "\n") + (indents ? blanks : std::string()) + line.text();
    is_first = false;
  }
  return out;
}

template <bool (Value::*member)() const>
bool is_kind(const Arguments& a) {
  return (a.values[0].*member)();
}
bool is_defined(const Arguments& a) { return !a.values[0].is_undefined(); }
bool is_mapping(const Arguments& a) {
  return a.values[0].is_dict() || a.values[0].space() != nullptr;
}
bool is_sequence(const Arguments& a) {
  return a.values[0].is_text() || a.values[0].is_list() || a.values[0].is_dict();
}
bool is_iterable(const Arguments& a) { return is_sequence(a) || a.values[0].is_undefined(); }
bool is_integer(const Arguments& a) { return a.values[0].is<std::int64_t>(); }
bool is_float(const Arguments& a) { return a.values[0].is<double>(); }
bool is_boolean(const Arguments& a) { return a.values[0].is<bool>(); }
bool is_true(const Arguments& a) { return is_boolean(a) && a.values[0].truth(); }
bool is_false(const Arguments& a) { return is_boolean(a) && !a.values[0].truth(); }
bool is_callable(const Arguments& a) { return a.values[0].function() != nullptr; }
bool is_odd(const Arguments& a) { return a.values[0].whole() % 2 != 0; }
bool is_even(const Arguments& a) { return a.values[0].whole() % 2 == 0; }
bool is_divisible(const Arguments& a) {
  const std::int64_t by = argument(a, 1, "num").whole();
  if (by == 0) {
    throw Problem("a division by zero");
  }
  return a.values[0].whole() % by == 0;
}
bool is_in(const Arguments& a) { return contains(argument(a, 1, "seq"), a.values[0]); }
bool is_equal(const Arguments& a) { return equal(a.values[0], argument(a, 1, "other")); }
bool is_unequal(const Arguments& a) { return !is_equal(a); }
bool is_less(const Arguments& a) { return compare(a.values[0], argument(a, 1, "other")) < 0; }
bool is_at_most(const Arguments& a) { return compare(a.values[0], argument(a, 1, "other")) <= 0; }
bool is_greater(const Arguments& a) { return compare(a.values[0], argument(a, 1, "other")) > 0; }
bool is_at_least(const Arguments& a) { return compare(a.values[0], argument(a, 1, "other")) >= 0; }

/// As a method: of a text alone, where the filter takes other values too.
template <FilterFunction f>
Value of_text(const Arguments& a) {
  static_cast<void>(a.values[0].text());
  return f(a);
}

template <class F>
using Named = std::map<std::string_view, F>;

template <class F>
F find(const Named<F>& all, std::string_view name) {
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace

FilterFunction find_filter(std::string_view name) {
  static const Named<FilterFunction> filters = {{"abs", absolute},
                                                {"capitalize", capitalize},
                                                {"count", length},
                                                {"d", otherwise},
                                                {"default", otherwise},
                                                {"first", first},
                                                {"float", real},
                                                {"indent", indent},
                                                {"int", whole},
                                                {"items", items},
                                                {"join", join},
                                                {"last", last},
                                                {"length", length},
                                                {"list", list},
                                                {"lower", lower},
                                                {"map", map},
                                                {"reject", select<false, false>},
                                                {"rejectattr", select<true, false>},
                                                {"replace", replace},
                                                {"reverse", reverse},
                                                {"safe", unchanged},
                                                {"select", select<false, true>},
                                                {"selectattr", select<true, true>},
                                                {"string", string},
                                                {"title", title},
                                                {"tojson", to_json_filter},
                                                {"trim", strip<true, true>},
                                                {"upper", upper}};
  return find(filters, name);
}

TestFunction find_test(std::string_view name) {
  static const Named<TestFunction> tests = {{"boolean", is_boolean},
                                            {"callable", is_callable},
                                            {"defined", is_defined},
                                            {"divisibleby", is_divisible},
                                            {"eq", is_equal},
                                            {"equalto", is_equal},
                                            {"even", is_even},
                                            {"false", is_false},
                                            {"float", is_float},
                                            {"ge", is_at_least},
                                            {"greaterthan", is_greater},
                                            {"gt", is_greater},
                                            {"in", is_in},
                                            {"integer", is_integer},
                                            {"iterable", is_iterable},
                                            {"le", is_at_most},
                                            {"lessthan", is_less},
                                            {"lt", is_less},
                                            {"mapping", is_mapping},
                                            {"ne", is_unequal},
                                            {"none", is_kind<&Value::is_none>},
                                            {"number", is_kind<&Value::is_number>},
                                            {"odd", is_odd},
                                            {"sequence", is_sequence},
                                            {"string", is_kind<&Value::is_text>},
                                            {"true", is_true},
                                            {"undefined", is_kind<&Value::is_undefined>}};
  return find(tests, name);
}

FilterFunction find_method(std::string_view name) {
  static const Named<FilterFunction> methods = {{"capitalize", of_text<capitalize>},
                                                {"count", count_in},
                                                {"endswith", ends_with},
                                                {"find", find_in},
                                                {"get", get},
                                                {"isdigit", all_characters<is_digit>},
                                                {"items", items},
                                                {"join", join_method},
                                                {"keys", keys},
                                                {"lower", of_text<lower>},
                                                {"lstrip", of_text<strip<true, false>>},
                                                {"replace", of_text<replace>},
                                                {"rsplit", split<true>},
                                                {"rstrip", of_text<strip<false, true>>},
                                                {"split", split<false>},
                                                {"splitlines", split_lines},
                                                {"startswith", starts_with},
                                                {"strip", of_text<strip<true, true>>},
                                                {"title", of_text<title>},
                                                {"upper", of_text<upper>},
                                                {"values", values}};
  return find(methods, name);
}

bool contains(const Value& whole, const Value& needle) {
  if (whole.is_text()) {
    return whole.text().find(needle.text()) != std::string::npos;
  }
  if (whole.is_dict()) {
    return needle.is_text() && whole.dict().find(needle.text()) != nullptr;
  }
  return std::ranges::any_of(whole.list(), [&](const Value& one) { return equal(one, needle); });
}

Value item_of(const Value& object, const Value& index) {
  if (object.is_undefined()) {
    throw Problem(fmt::format("an entry of {}", object.kind()));
  }
  if (object.is_dict() || object.space() != nullptr) {
    if (!index.is_text()) {
      return Value::undefined("the entry");
    }
    const Dict& members = object.is_dict() ? object.dict() : object.space()->members;
    const Value* found = members.find(index.text());
    return found != nullptr ? *found : Value::undefined(index.text());
  }
  if ((!object.is_list() && !object.is_text()) || !index.is_whole()) {
    return Value::undefined(index.is_text() ? index.text() : "the entry");
  }
  const std::int64_t wanted = index.whole();
  if (object.is_list()) {
    const List& list = object.list();
    const std::int64_t at = wanted < 0 ? wanted + std::ssize(list) : wanted;
    return at < 0 || at >= std::ssize(list) ? Value::undefined("the entry")
                                            : list[static_cast<std::size_t>(at)];
  }
  const std::vector<std::size_t> starts = character_starts(object.text());
  const std::int64_t count = std::ssize(starts) - 1;
  const std::int64_t at = wanted < 0 ? wanted + count : wanted;
  if (at < 0 || at >= count) {
    return Value::undefined("the character");
  }
  const auto which = static_cast<std::size_t>(at);
  return object.text().substr(starts[which], starts[which + 1] - starts[which]);
}

List entries_of(const Value& value) {
  List all;
  if (value.is_undefined()) {
    return all;
  }
  if (value.is_dict()) {
    for (const auto& member : value.dict().members()) {
      all.emplace_back(member.first);
    }
    return all;
  }
  if (value.is_text()) {
    const std::vector<std::size_t> starts = character_starts(value.text());
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
      all.emplace_back(value.text().substr(starts[i], starts[i + 1] - starts[i]));
    }
    return all;
  }
  return value.list();
}

}  // namespace tessera::data::jinja
