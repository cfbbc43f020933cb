module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tessera/printable.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.base;

namespace tessera {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

/// Numbers as words of a list: each, or, of many, runs; and how many were left out.
struct NumberList {
  std::vector<std::string> runs;
  std::size_t left_out = 0;
};

NumberList listed_numbers(std::span<const int> numbers) {
  constexpr std::size_t few = 16;
  const bool as_runs = numbers.size() > few;
  NumberList listed;
  for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    if (listed.runs.size() == few) {
      listed.left_out = numbers.size() - begin;
      break;
    }
    end = begin + 1;
    while (as_runs && end < numbers.size() && numbers[end] == numbers[end - 1] + 1) {
      ++end;
    }
    listed.runs.push_back(end - begin == 1
                              ? fmt::format("{}", numbers[begin])
                              : fmt::format("{} to {}", numbers[begin], numbers[end - 1]));
  }
  return listed;
}

/// Glob over a whole name; `*` stops at dots, `**` does not.
bool glob(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) {
    return name.empty();
  }
  if (pattern.front() != '*') {
    return !name.empty() &&
           (pattern.front() == '?' ? name.front() != '.' : name.front() == pattern.front()) &&
           glob(name.substr(1), pattern.substr(1));
  }
  const bool over_parts = pattern.starts_with("**");
  const std::string_view rest = pattern.substr(over_parts ? 2 : 1);
  for (std::size_t i = 0; i <= name.size(); ++i) {
    if (glob(name.substr(i), rest)) {
      return true;
    }
    if (i < name.size() && name[i] == '.' && !over_parts) {
      return false;
    }
  }
  return false;
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    if (name.size() >= candidate.size() + best_distance) {
      continue;  // so many letters would have to go
    }
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> known) {
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string format_flops(double flops) {
  constexpr std::string_view units[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(units)) {
    flops /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || flops >= 99.95 ? 0 : flops >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}FLOP", flops, decimals, units[unit]);
}

std::string format_count(double count) {
  for (const auto& [unit, name] :
       {std::pair{1e12, "T"}, std::pair{1e9, "B"}, std::pair{1e6, "M"}, std::pair{1e3, "k"}}) {
    if (count >= unit) {
      const double value = count / unit;
      return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, name);
    }
  }
  return fmt::format("{:.0f}", printable(count));
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return "?";
  }
  if (seconds < 59.5) {
    return seconds < 9.95 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
  }
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e12)));
  if (whole < 3600) {
    return fmt::format("{}:{:02}", whole / 60, whole % 60);
  }
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string join_words(std::span<const std::string> words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  return text;
}

std::string count_text(std::int64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string list_numbers(std::span<const int> numbers) {
  const NumberList listed = listed_numbers(numbers);
  const std::string text = fmt::format("{}", fmt::join(listed.runs, ", "));
  return listed.left_out == 0 ? text : fmt::format("{} and {} more", text, listed.left_out);
}

std::string numbers_text(std::string_view thing, std::span<const int> numbers) {
  NumberList listed = listed_numbers(numbers);
  if (listed.left_out > 0) {
    listed.runs.push_back(fmt::format("{} more", listed.left_out));
  }
  return fmt::format("{}{} {}", thing, numbers.size() == 1 ? "" : "s", join_words(listed.runs));
}

std::vector<std::string> expand_braces(std::string_view pattern) {
  const std::size_t open = pattern.find('{');
  if (open == std::string_view::npos) {
    if (pattern.find('}') != std::string_view::npos) {
      fail_input(
          {.thing = fmt::format("pattern '{}'", shown(pattern)), .wrong = "'}' without '{'"});
    }
    return {std::string(pattern)};
  }
  const std::size_t close = pattern.find('}', open);
  if (close == std::string_view::npos ||
      pattern.substr(0, open).find('}') != std::string_view::npos ||
      pattern.substr(open + 1, close - open - 1).find('{') != std::string_view::npos) {
    fail_input({.thing = fmt::format("pattern '{}'", shown(pattern)),
                .wrong = "braces do not pair (write {a,b}, not nested)"});
  }
  std::vector<std::string> all;
  std::string_view choices = pattern.substr(open + 1, close - open - 1);
  const std::vector<std::string> tails = expand_braces(pattern.substr(close + 1));
  const auto add = [&](std::string_view choice) {
    constexpr std::size_t most = 100'000;
    if (all.size() + tails.size() > most) {
      fail_input({.thing = fmt::format("pattern '{}'", shown(pattern)),
                  .wrong = fmt::format("its braces stand for more than {} patterns", most),
                  .advice = "write * in the place of some"});
    }
    for (const std::string& tail : tails) {
      all.push_back(fmt::format("{}{}{}", pattern.substr(0, open), choice, tail));
    }
  };
  for (std::size_t comma = choices.find(','); comma != std::string_view::npos;
       comma = choices.find(',')) {
    add(choices.substr(0, comma));
    choices.remove_prefix(comma + 1);
  }
  add(choices);
  return all;
}

bool matches_pattern(std::string_view name, std::string_view pattern) {
  const std::vector<std::string> all = expand_braces(pattern);
  return std::any_of(all.begin(), all.end(),
                     [&](const std::string& p) { return p == "." ? name.empty() : glob(name, p); });
}

}  // namespace tessera
