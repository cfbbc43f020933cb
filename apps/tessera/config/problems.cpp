#include "config/problems.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

import tessera.base;

namespace tessera::app {

std::string Place::text() const { return line > 0 ? fmt::format("{}:{}", source, line) : source; }

void Problems::add(Place place, std::string text) {
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
  std::string text = fmt::format("{}: {} problems", file_, all_.size());
  for (const Problem& problem : all_) {
    text += fmt::format("\n  {}: {}", problem.place.text(), problem.text);
  }
  fail_input(text);
}

}  // namespace tessera::app
