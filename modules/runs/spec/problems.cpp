module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <tessera/shown.hpp>
#include <utility>
module tessera.runs;

import tessera.base;

namespace tessera::runs {

std::string SourceLine::text() const {
  constexpr std::size_t longest = 200;
  const std::string name = shown(source, longest);
  return line > 0 ? fmt::format("{}:{}", name, line) : name;
}

void Problems::add(SourceLine place, std::string text) {
  const auto at =
      std::ranges::upper_bound(all_, place.line, {}, [](const Problem& p) { return p.place.line; });
  all_.insert(at, {std::move(place), std::move(text)});
}

void Problems::throw_if_any() {
  if (all_.empty()) {
    return;
  }
  if (all_.size() == 1) {
    fail_input({.where = all_[0].place.text(), .wrong = all_[0].text});
  }
  constexpr std::size_t most = 20;
  std::string text =
      fmt::format("{}: {} problems", file_.empty() ? "the run" : shown(file_), all_.size());
  for (std::size_t i = 0; i < std::min(most, all_.size()); ++i) {
    const std::string at = all_[i].place.text();
    text += fmt::format("\n  {}{}{}", at, at.empty() ? "" : ": ", all_[i].text);
  }
  if (all_.size() > most) {
    text += fmt::format("\n  and {} more", all_.size() - most);
  }
  fail_input(text);
}

}  // namespace tessera::runs
