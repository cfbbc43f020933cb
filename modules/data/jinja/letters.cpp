// Upper, lower and title case as Python has them: characters that become several ones included.
#include <utf8proc.h>

#include <algorithm>
#include <string_view>

#include "jinja/texts.hpp"

namespace tessera::data::jinja {
namespace {

/// Characters whose upper or title case has more than one character (Unicode's SpecialCasing).
struct SpecialCasing {
  std::uint32_t character;
  std::string_view upper;
  std::string_view title;
};
constexpr SpecialCasing specials[] = {{0xDF, "SS", "Ss"},
                                      {0x149, "\u02BCN", "\u02BCN"},
                                      {0x1F0, "J\u030C", "J\u030C"},
                                      {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
                                      {0x3B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
                                      {0x587, "\u0535\u0552", "\u0535\u0582"},
                                      {0x1E96, "H\u0331", "H\u0331"},
                                      {0x1E97, "T\u0308", "T\u0308"},
                                      {0x1E98, "W\u030A", "W\u030A"},
                                      {0x1E99, "Y\u030A", "Y\u030A"},
                                      {0x1E9A, "A\u02BE", "A\u02BE"},
                                      {0x1F50, "\u03A5\u0313", "\u03A5\u0313"},
                                      {0x1F52, "\u03A5\u0313\u0300", "\u03A5\u0313\u0300"},
                                      {0x1F54, "\u03A5\u0313\u0301", "\u03A5\u0313\u0301"},
                                      {0x1F56, "\u03A5\u0313\u0342", "\u03A5\u0313\u0342"},
                                      {0x1F80, "\u1F08\u0399", "\u1F88"},
                                      {0x1F81, "\u1F09\u0399", "\u1F89"},
                                      {0x1F82, "\u1F0A\u0399", "\u1F8A"},
                                      {0x1F83, "\u1F0B\u0399", "\u1F8B"},
                                      {0x1F84, "\u1F0C\u0399", "\u1F8C"},
                                      {0x1F85, "\u1F0D\u0399", "\u1F8D"},
                                      {0x1F86, "\u1F0E\u0399", "\u1F8E"},
                                      {0x1F87, "\u1F0F\u0399", "\u1F8F"},
                                      {0x1F88, "\u1F08\u0399", "\u1F88"},
                                      {0x1F89, "\u1F09\u0399", "\u1F89"},
                                      {0x1F8A, "\u1F0A\u0399", "\u1F8A"},
                                      {0x1F8B, "\u1F0B\u0399", "\u1F8B"},
                                      {0x1F8C, "\u1F0C\u0399", "\u1F8C"},
                                      {0x1F8D, "\u1F0D\u0399", "\u1F8D"},
                                      {0x1F8E, "\u1F0E\u0399", "\u1F8E"},
                                      {0x1F8F, "\u1F0F\u0399", "\u1F8F"},
                                      {0x1F90, "\u1F28\u0399", "\u1F98"},
                                      {0x1F91, "\u1F29\u0399", "\u1F99"},
                                      {0x1F92, "\u1F2A\u0399", "\u1F9A"},
                                      {0x1F93, "\u1F2B\u0399", "\u1F9B"},
                                      {0x1F94, "\u1F2C\u0399", "\u1F9C"},
                                      {0x1F95, "\u1F2D\u0399", "\u1F9D"},
                                      {0x1F96, "\u1F2E\u0399", "\u1F9E"},
                                      {0x1F97, "\u1F2F\u0399", "\u1F9F"},
                                      {0x1F98, "\u1F28\u0399", "\u1F98"},
                                      {0x1F99, "\u1F29\u0399", "\u1F99"},
                                      {0x1F9A, "\u1F2A\u0399", "\u1F9A"},
                                      {0x1F9B, "\u1F2B\u0399", "\u1F9B"},
                                      {0x1F9C, "\u1F2C\u0399", "\u1F9C"},
                                      {0x1F9D, "\u1F2D\u0399", "\u1F9D"},
                                      {0x1F9E, "\u1F2E\u0399", "\u1F9E"},
                                      {0x1F9F, "\u1F2F\u0399", "\u1F9F"},
                                      {0x1FA0, "\u1F68\u0399", "\u1FA8"},
                                      {0x1FA1, "\u1F69\u0399", "\u1FA9"},
                                      {0x1FA2, "\u1F6A\u0399", "\u1FAA"},
                                      {0x1FA3, "\u1F6B\u0399", "\u1FAB"},
                                      {0x1FA4, "\u1F6C\u0399", "\u1FAC"},
                                      {0x1FA5, "\u1F6D\u0399", "\u1FAD"},
                                      {0x1FA6, "\u1F6E\u0399", "\u1FAE"},
                                      {0x1FA7, "\u1F6F\u0399", "\u1FAF"},
                                      {0x1FA8, "\u1F68\u0399", "\u1FA8"},
                                      {0x1FA9, "\u1F69\u0399", "\u1FA9"},
                                      {0x1FAA, "\u1F6A\u0399", "\u1FAA"},
                                      {0x1FAB, "\u1F6B\u0399", "\u1FAB"},
                                      {0x1FAC, "\u1F6C\u0399", "\u1FAC"},
                                      {0x1FAD, "\u1F6D\u0399", "\u1FAD"},
                                      {0x1FAE, "\u1F6E\u0399", "\u1FAE"},
                                      {0x1FAF, "\u1F6F\u0399", "\u1FAF"},
                                      {0x1FB2, "\u1FBA\u0399", "\u1FBA\u0345"},
                                      {0x1FB3, "\u0391\u0399", "\u1FBC"},
                                      {0x1FB4, "\u0386\u0399", "\u0386\u0345"},
                                      {0x1FB6, "\u0391\u0342", "\u0391\u0342"},
                                      {0x1FB7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
                                      {0x1FBC, "\u0391\u0399", "\u1FBC"},
                                      {0x1FC2, "\u1FCA\u0399", "\u1FCA\u0345"},
                                      {0x1FC3, "\u0397\u0399", "\u1FCC"},
                                      {0x1FC4, "\u0389\u0399", "\u0389\u0345"},
                                      {0x1FC6, "\u0397\u0342", "\u0397\u0342"},
                                      {0x1FC7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
                                      {0x1FCC, "\u0397\u0399", "\u1FCC"},
                                      {0x1FD2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
                                      {0x1FD3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
                                      {0x1FD6, "\u0399\u0342", "\u0399\u0342"},
                                      {0x1FD7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
                                      {0x1FE2, "\u03A5\u0308\u0300", "\u03A5\u0308\u0300"},
                                      {0x1FE3, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
                                      {0x1FE4, "\u03A1\u0313", "\u03A1\u0313"},
                                      {0x1FE6, "\u03A5\u0342", "\u03A5\u0342"},
                                      {0x1FE7, "\u03A5\u0308\u0342", "\u03A5\u0308\u0342"},
                                      {0x1FF2, "\u1FFA\u0399", "\u1FFA\u0345"},
                                      {0x1FF3, "\u03A9\u0399", "\u1FFC"},
                                      {0x1FF4, "\u038F\u0399", "\u038F\u0345"},
                                      {0x1FF6, "\u03A9\u0342", "\u03A9\u0342"},
                                      {0x1FF7, "\u03A9\u0342\u0399", "\u03A9\u0342\u0345"},
                                      {0x1FFC, "\u03A9\u0399", "\u1FFC"},
                                      {0xFB00, "FF", "Ff"},
                                      {0xFB01, "FI", "Fi"},
                                      {0xFB02, "FL", "Fl"},
                                      {0xFB03, "FFI", "Ffi"},
                                      {0xFB04, "FFL", "Ffl"},
                                      {0xFB05, "ST", "St"},
                                      {0xFB06, "ST", "St"},
                                      {0xFB13, "\u0544\u0546", "\u0544\u0576"},
                                      {0xFB14, "\u0544\u0535", "\u0544\u0565"},
                                      {0xFB15, "\u0544\u053B", "\u0544\u056B"},
                                      {0xFB16, "\u054E\u0546", "\u054E\u0576"},
                                      {0xFB17, "\u0544\u053D", "\u0544\u056D"}};

const SpecialCasing* special(std::uint32_t c) {
  const auto* const at = std::ranges::lower_bound(specials, c, {}, &SpecialCasing::character);
  return at != std::end(specials) && at->character == c ? at : nullptr;
}

utf8proc_int32_t code(std::uint32_t c) { return static_cast<utf8proc_int32_t>(c); }

void add_upper(std::uint32_t c, std::string& out) {
  if (const SpecialCasing* const found = special(c)) {
    out += found->upper;
  } else {
    append_utf8(out, static_cast<std::uint32_t>(utf8proc_toupper(code(c))));
  }
}

void add_title(std::uint32_t c, std::string& out) {
  if (const SpecialCasing* const found = special(c)) {
    out += found->title;
  } else {
    append_utf8(out, static_cast<std::uint32_t>(utf8proc_totitle(code(c))));
  }
}

/// Letters that have cases.
bool is_cased(std::uint32_t c) {
  const auto category = utf8proc_category(code(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT || utf8proc_toupper(code(c)) != code(c) ||
         utf8proc_tolower(code(c)) != code(c);
}

/// Characters that are passed over when the end of a word is looked for.
bool is_ignored(std::uint32_t c) {
  constexpr std::u32string_view marks =
      U"'.:^`\u00B7\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  const auto category = utf8proc_category(code(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
         category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
         category == UTF8PROC_CATEGORY_SK || marks.find(c) != std::u32string_view::npos;
}

/// Whether a capital sigma at `i` ends a word, where its lower case is another letter.
bool ends_word(const std::u32string& text, std::size_t i) {
  std::size_t before = i;
  while (before > 0 && is_ignored(text[before - 1])) {
    --before;
  }
  std::size_t after = i + 1;
  while (after < text.size() && is_ignored(text[after])) {
    ++after;
  }
  return before > 0 && is_cased(text[before - 1]) &&
         (after == text.size() || !is_cased(text[after]));
}

void add_lower(const std::u32string& text, std::size_t i, std::string& out) {
  constexpr std::uint32_t sigma = 0x3A3;
  constexpr std::uint32_t dotted = 0x130;
  if (text[i] == sigma) {
    append_utf8(out, ends_word(text, i) ? 0x3C2 : 0x3C3);
  } else if (text[i] == dotted) {
    out += "i\u0307";
  } else {
    append_utf8(out, static_cast<std::uint32_t>(utf8proc_tolower(code(text[i]))));
  }
}

std::u32string decoded(std::string_view text, Budget& budget) {
  const Characters characters(text, budget);
  budget.step(characters.size());
  budget.check_room(4 * characters.size());
  std::u32string out;
  out.reserve(characters.size());
  for (std::size_t i = 0; i < characters.size(); ++i) {
    out += character_at(characters[i], 0);
  }
  return out;
}

}  // namespace

std::string upper_case(std::string_view text, Budget& budget) {
  std::string out;
  for (const char32_t c : decoded(text, budget)) {
    add_upper(c, out);
  }
  return out;
}

std::string lower_case(std::string_view text, Budget& budget) {
  const std::u32string all = decoded(text, budget);
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    add_lower(all, i, out);
  }
  return out;
}

std::string capitalized(std::string_view text, Budget& budget) {
  const std::u32string all = decoded(text, budget);
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 0) {
      add_title(all[i], out);
    } else {
      add_lower(all, i, out);
    }
  }
  return out;
}

std::string title_case(std::string_view text, Budget& budget) {
  const std::u32string all = decoded(text, budget);
  std::string out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && is_cased(all[i - 1])) {
      add_lower(all, i, out);
    } else {
      add_title(all[i], out);
    }
  }
  return out;
}

std::string title_of_words(std::string_view text, Budget& budget) {
  // Jinja's filter begins words after these, and makes each one lower case by itself.
  const auto separates = [](std::uint32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  const std::u32string all = decoded(text, budget);
  std::string out;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin + 1;
    while (end < all.size() && separates(all[end]) == separates(all[begin])) {
      ++end;
    }
    const std::u32string word = all.substr(begin, end - begin);
    add_upper(word[0], out);
    const std::u32string rest = word.substr(1);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      add_lower(rest, i, out);
    }
    begin = end;
  }
  return out;
}

bool has_case(std::string_view text, bool upper, Budget& budget) {
  bool any = false;
  for (const char32_t c : decoded(text, budget)) {
    const auto category = utf8proc_category(code(c));
    const bool is_lower = category == UTF8PROC_CATEGORY_LL;
    const bool is_upper = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
    if (upper ? is_lower : is_upper) {
      return false;
    }
    any = any || (upper ? is_upper : is_lower);
  }
  return any;
}

}  // namespace tessera::data::jinja
