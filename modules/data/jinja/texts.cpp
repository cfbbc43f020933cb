#include "jinja/texts.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <tessera/utf8.hpp>

namespace tessera::data::jinja {
namespace {

constexpr std::size_t npos = std::string_view::npos;

const std::string& own(const Call& c) { return c.object().text(); }

/// A count of Python's methods: negative or none means all.
std::size_t at_most(const Value& count) {
  return count.is_none() || count.whole() < 0 ? std::numeric_limits<std::size_t>::max()
                                              : static_cast<std::size_t>(count.whole());
}

template <std::string (*change)(std::string_view, Budget&)>
Value cased(const Call& c) {
  return c.text(change(own(c), c.budget));
}

template <bool left, bool right>
Value strip(const Call& c) {
  const Value set = c.get(1);
  c.budget.read(own(c).size() * (set.is_none() ? 1 : 1 + set.text().size()));
  return c.text(std::string(stripped(own(c), set.is_none() ? nullptr : &set.text(), left, right)));
}

Value list_of(const Call& c, const std::vector<std::string_view>& parts,
              SequenceKind form = SequenceKind::list) {
  List all;
  for (const std::string_view part : parts) {
    all.push_back(c.text(std::string(part)));
  }
  return c.list(std::move(all), form);
}

/// Where words without white space in them are.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!(text = stripped(text, nullptr, true, false)).empty()) {
    std::size_t end = 0;
    while (end < text.size() && !is_space(character_at(text, end))) {
      ++end;
      while (end < text.size() && is_continuation(text[end])) {
        ++end;
      }
    }
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

/// Of all words the first (or last) `most`, and what is beyond them as one.
std::vector<std::string_view> split_words(std::string_view text, std::size_t most, bool right) {
  std::vector<std::string_view> words = words_of(text);
  if (words.size() <= most) {
    return words;
  }
  const auto count = static_cast<std::ptrdiff_t>(most);
  if (right) {
    const std::string_view before = words[words.size() - most - 1];
    const auto bytes = static_cast<std::size_t>(before.data() + before.size() - text.data());
    words.erase(words.begin(), words.end() - count);
    words.insert(words.begin(), text.substr(0, bytes));
  } else {
    const auto begin = static_cast<std::size_t>(words[most].data() - text.data());
    words.erase(words.begin() + count, words.end());
    words.push_back(text.substr(begin));
  }
  return words;
}

/// Where the parts begin that equal `mark`, from the left or from the right.
std::vector<std::size_t> places_of(std::string_view text, std::string_view mark, std::size_t most,
                                   bool right, Budget& budget) {
  std::string turned_text;
  std::string turned_mark;
  std::string_view within = text;
  std::string_view what = mark;
  if (right) {  // Python looks from the right, which differs where they overlap
    budget.read(text.size() + mark.size());
    turned_text.assign(text.rbegin(), text.rend());
    turned_mark.assign(mark.rbegin(), mark.rend());
    within = turned_text;
    what = turned_mark;
  }
  std::vector<std::size_t> places;
  for (std::size_t at = 0; places.size() < most;) {
    at = find(within, what, at, budget);
    if (at == npos) {
      break;
    }
    places.push_back(right ? text.size() - at - mark.size() : at);
    at += what.size();
  }
  if (right) {
    std::ranges::reverse(places);
  }
  return places;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view mark,
                                       std::size_t most, bool right, Budget& budget) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  for (const std::size_t at : places_of(text, mark, most, right, budget)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + mark.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

template <bool right>
Value split(const Call& c) {
  const Value mark = c.get(1);
  const std::size_t most = at_most(c.get(2));
  c.budget.read(own(c).size());
  if (mark.is_none()) {
    return list_of(c, split_words(own(c), most, right));
  }
  if (mark.text().empty()) {
    throw Problem("the text to split at is empty");
  }
  return list_of(c, split_at(own(c), mark.text(), most, right, c.budget));
}

template <bool right>
Value partition(const Call& c) {
  const std::string& mark = c[1].text();
  if (mark.empty()) {
    throw Problem("the text to split at is empty");
  }
  const std::vector<std::string_view> parts = split_at(own(c), mark, 1, right, c.budget);
  if (parts.size() == 2) {
    return list_of(c, {parts[0], mark, parts[1]}, SequenceKind::tuple);
  }
  return right ? list_of(c, {"", "", parts[0]}, SequenceKind::tuple)
               : list_of(c, {parts[0], "", ""}, SequenceKind::tuple);
}

/// The part from the arguments 'start' and 'end', and the characters before it.
struct Substring {
  std::string text;
  std::int64_t begin = 0;
};
Substring part_of(const Call& c, std::size_t start) {
  if (!c.has(start) && !c.has(start + 1)) {
    return {own(c), 0};
  }
  const Value none;
  const std::int64_t count = count_characters(own(c));
  std::int64_t begin = c.get(start).is_none() ? 0 : c[start].whole();
  begin = begin < 0 ? std::max<std::int64_t>(0, begin + count) : begin;
  if (begin > count) {
    throw Problem("'start' is beyond the end of the text");
  }
  return {sliced(c.object(), Value(begin), c.get(start + 1), none, c.budget).text(), begin};
}

/// startswith and endswith: of one text, or any of several.
template <bool at_end>
Value begins(const Call& c) {
  const Substring part = part_of(c, 2);
  const auto fits = [&](const Value& one) {
    c.budget.read(one.text().size());
    return at_end ? part.text.ends_with(one.text()) : part.text.starts_with(one.text());
  };
  if (c[1].is_text()) {
    return fits(c[1]);
  }
  if (!c[1].is_form(SequenceKind::tuple)) {
    throw Problem(fmt::format("expected a text or a tuple of texts, got {}", c[1].kind()));
  }
  return std::ranges::any_of(c[1].sequence().entries, fits);
}

template <bool right>
Value find_in(const Call& c) {
  const Substring part = part_of(c, 2);
  c.budget.read(part.text.size());
  const std::string& what = c[1].text();
  if (what.empty()) {
    return part.begin + (right ? count_characters(part.text) : 0);
  }
  const std::vector<std::size_t> found = places_of(part.text, what, 1, right, c.budget);
  return found.empty()
             ? std::int64_t{-1}
             : part.begin + count_characters(std::string_view(part.text).substr(0, found[0]));
}

Value count_in(const Call& c) {
  const Substring part = part_of(c, 2);
  const std::string& what = c[1].text();
  if (what.empty()) {
    return count_characters(part.text) + 1;
  }
  constexpr std::size_t all = std::numeric_limits<std::size_t>::max();
  return std::ssize(places_of(part.text, what, all, false, c.budget));
}

Value join(const Call& c) {
  Writer out(c.budget);
  bool first = true;
  for (const Value& entry : entries_of(c[1], c.budget)) {
    out.add(first ? std::string_view() : std::string_view(own(c)));
    out.add(entry.text());
    first = false;
  }
  return c.text(out.take());
}

Value replace(const Call& c) {
  return c.text(replaced(own(c), c[1].text(), c[2].text(),
                         c.get(3, Value(std::int64_t{-1})).whole(), c.budget));
}

Value split_lines(const Call& c) {
  return list_of(c, lines_of(own(c), c.get(1, Value(false)).truth(), c.budget));
}

template <bool at_end>
Value without(const Call& c) {
  std::string text = own(c);
  const std::string& part = c[1].text();
  if (at_end ? text.ends_with(part) : text.starts_with(part)) {
    text.erase(at_end ? text.size() - part.size() : 0, part.size());
  }
  return c.text(std::move(text));
}

bool is_letter(std::uint32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(std::uint32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (category == UTF8PROC_CATEGORY_NO || category == UTF8PROC_CATEGORY_NL) {
    throw Problem("numbers that are no decimal digits are not supported here");
  }
  return category == UTF8PROC_CATEGORY_ND;
}
bool is_letter_or_digit(std::uint32_t c) { return is_letter(c) || is_digit(c); }

template <bool (*fits)(std::uint32_t)>
Value all_characters(const Call& c) {
  const Characters characters(own(c), c.budget);
  c.budget.step(characters.size());
  for (std::size_t i = 0; i < characters.size(); ++i) {
    if (!fits(character_at(characters[i], 0))) {
      return false;
    }
  }
  return characters.size() > 0;
}

template <bool upper>
Value is_case(const Call& c) {
  return has_case(own(c), upper, c.budget);
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::int64_t count, Budget& budget) {
  Writer out(budget);
  std::size_t at = 0;
  if (from.empty()) {  // between all characters
    const Characters characters(text, budget);
    const std::size_t size = characters.size();
    for (std::size_t i = 0; i <= size; ++i, count -= count > 0) {
      out.add(count != 0 ? to : std::string_view());
      out.add(i < size ? characters[i] : std::string_view());
    }
    return out.take();
  }
  for (std::size_t next = count == 0 ? npos : find(text, from, 0, budget); next != npos;
       next = --count == 0 ? npos : find(text, from, at, budget)) {
    out.add(text.substr(at, next - at));
    out.add(to);
    at = next + from.size();
  }
  out.add(text.substr(at));
  return out.take();
}

std::vector<std::string_view> lines_of(std::string_view text, bool with_ends, Budget& budget) {
  const auto ends_line = [](std::uint32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  const Characters characters(text, budget);
  std::vector<std::string_view> lines;
  const std::size_t size = characters.size();
  const char* begin = text.data();
  for (std::size_t i = 0; i < size; ++i) {
    if (!ends_line(character_at(characters[i], 0))) {
      continue;
    }
    const char* const end = characters[i].data();
    i += characters[i] == "\r" && i + 1 < size && characters[i + 1] == "\n" ? 1 : 0;
    const char* const next = characters[i].data() + characters[i].size();
    lines.emplace_back(begin, static_cast<std::size_t>((with_ends ? next : end) - begin));
    begin = next;
  }
  const char* const end = text.data() + text.size();
  if (begin != end) {
    lines.emplace_back(begin, static_cast<std::size_t>(end - begin));
  }
  budget.step(lines.size());
  return lines;
}

const std::vector<Signature>& text_methods() {
  static const std::vector<Signature> methods = {
      {"capitalize", "", cased<capitalized>},
      {"count", "sub start? end?", count_in},
      {"endswith", "suffix start? end?", begins<true>},
      {"find", "sub start? end?", find_in<false>},
      {"isalnum", "", all_characters<is_letter_or_digit>},
      {"isalpha", "", all_characters<is_letter>},
      {"isdigit", "", all_characters<is_digit>},
      {"islower", "", is_case<false>},
      {"isspace", "", all_characters<is_space>},
      {"isupper", "", is_case<true>},
      {"join", "iterable", join},
      {"lower", "", cased<lower_case>},
      {"lstrip", "chars?", strip<true, false>},
      {"partition", "sep", partition<false>},
      {"removeprefix", "prefix", without<false>},
      {"removesuffix", "suffix", without<true>},
      {"replace", "old new count?", replace},
      {"rfind", "sub start? end?", find_in<true>},
      {"rpartition", "sep", partition<true>},
      {"rsplit", "sep? maxsplit?", split<true>},
      {"rstrip", "chars?", strip<false, true>},
      {"split", "sep? maxsplit?", split<false>},
      {"splitlines", "keepends?", split_lines},
      {"startswith", "prefix start? end?", begins<false>},
      {"strip", "chars?", strip<true, true>},
      {"title", "", cased<title_case>},
      {"upper", "", cased<upper_case>}};
  return methods;
}

}  // namespace tessera::data::jinja
