module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import :difference;

namespace tessera::graph {
namespace {

std::map<std::string_view, std::pair<std::size_t, int>> places(
    const std::vector<std::string_view>& lines) {
  std::map<std::string_view, std::pair<std::size_t, int>> all;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    auto& [place, count] = all[lines[i]];
    place = i;
    ++count;
  }
  return all;
}

using Match = std::pair<std::size_t, std::size_t>;

/// The longest list of matches in which both texts go forward (patience sorting).
std::vector<Match> longest(const std::vector<Match>& matches) {
  std::vector<std::size_t> ends;  // by length: the match that ends the best list
  std::vector<std::ptrdiff_t> previous(matches.size(), -1);
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const auto at = std::ranges::lower_bound(
        ends, matches[i].second, {}, [&](std::size_t match) { return matches[match].second; });
    if (at != ends.begin()) {
      previous[i] = static_cast<std::ptrdiff_t>(*(at - 1));
    }
    if (at == ends.end()) {
      ends.push_back(i);
    } else {
      *at = i;
    }
  }
  std::vector<Match> result;
  for (std::ptrdiff_t i = ends.empty() ? -1 : static_cast<std::ptrdiff_t>(ends.back()); i >= 0;
       i = previous[static_cast<std::size_t>(i)]) {
    result.push_back(matches[static_cast<std::size_t>(i)]);
  }
  std::ranges::reverse(result);
  return result;
}

}  // namespace

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string difference(std::string_view before, std::string_view after) {
  const std::vector<std::string_view> left = lines_of(before);
  const std::vector<std::string_view> right = lines_of(after);
  const auto in_right = places(right);
  std::vector<Match> matches;
  for (const auto& [line, at] : places(left)) {
    const auto found = in_right.find(line);
    if (at.second == 1 && found != in_right.end() && found->second.second == 1) {
      matches.emplace_back(at.first, found->second.first);
    }
  }
  std::ranges::sort(matches);
  matches = longest(matches);
  matches.emplace_back(left.size(), right.size());
  std::string text;
  std::size_t l = 0;
  std::size_t r = 0;
  for (const auto& [left_end, right_end] : matches) {
    while (l < left_end && r < right_end && left[l] == right[r]) {
      ++l;
      ++r;
    }
    if (l < left_end || r < right_end) {
      text += fmt::format("@ line {}\n", l + 1);
    }
    for (; l < left_end; ++l) {
      text += fmt::format("- {}\n", left[l]);
    }
    for (; r < right_end; ++r) {
      text += fmt::format("+ {}\n", right[r]);
    }
    ++l;
    ++r;
  }
  return text;
}

}  // namespace tessera::graph
