#include <fmt/format.h>

#include <array>
#include <ctime>
#include <optional>
#include <string_view>

#include "jinja/run.hpp"

namespace tessera::data::jinja {
namespace {

/// "2026-01-31", "2026-01-31T12:00:00" or with a blank between.
std::optional<std::tm> parsed(const std::string& now) {
  constexpr std::string_view pattern = "0000-00-00T00:00:00";
  const bool has_time = now.size() == pattern.size();
  if (!has_time && now.size() != 10) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < now.size(); ++i) {
    const bool digit = now[i] >= '0' && now[i] <= '9';
    const bool fits = pattern[i] == '0'   ? digit
                      : pattern[i] == 'T' ? now[i] == 'T' || now[i] == ' '
                                          : now[i] == pattern[i];
    if (!fits) {
      return std::nullopt;
    }
  }
  const auto number = [&](std::size_t at, std::size_t count) {
    return std::stoi(now.substr(at, count));
  };
  std::tm time{};
  time.tm_year = number(0, 4) - 1900;
  time.tm_mon = number(5, 2) - 1;
  time.tm_mday = number(8, 2);
  if (has_time) {
    time.tm_hour = number(11, 2);
    time.tm_min = number(14, 2);
    time.tm_sec = number(17, 2);
  }
  std::tm made = time;  // timegm fills in the day of the week, and moves what is not a date
  ::timegm(&made);
  const bool is_date = made.tm_year == time.tm_year && made.tm_mon == time.tm_mon &&
                       made.tm_mday == time.tm_mday && made.tm_hour == time.tm_hour &&
                       made.tm_min == time.tm_min && made.tm_sec == time.tm_sec;
  return is_date ? std::optional(made) : std::nullopt;
}

}  // namespace

std::string time_text(const std::string& now, const std::string& format) {
  const std::optional<std::tm> time = parsed(now);
  if (!time) {
    throw Problem(
        fmt::format("'now' is no date (expected \"2026-01-31\" or "
                    "\"2026-01-31T12:00:00\", got \"{}\")",
                    now.substr(0, 40)));
  }
  constexpr std::string_view directives = "aAbBdeFHIjmMpSTuwyY%";
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const bool short_form = i + 1 < format.size() && format[i + 1] == '-';
    i += short_form ? 2 : 1;
    if (i >= format.size() || directives.find(format[i]) == std::string_view::npos) {
      throw Problem(
          "a directive of strftime_now is not supported (expected %Y, %m, %d and others "
          "of " +
          std::string(directives) + ")");
    }
    const std::array<char, 4> own = {'%', short_form ? '-' : format[i],
                                     short_form ? format[i] : '\0', '\0'};
    std::array<char, 64> text{};
    out.append(text.data(), std::strftime(text.data(), text.size(), own.data(), &*time));
  }
  return out;
}

}  // namespace tessera::data::jinja
