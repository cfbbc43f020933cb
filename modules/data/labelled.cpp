module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;

namespace tessera::data {

LabelNames::LabelNames(std::vector<std::string> names, std::vector<std::uint32_t> places)
    : names_(std::move(names)), of_(std::move(places)) {
  for (const std::string& name : names_) {
    places_.try_emplace(name, static_cast<std::uint32_t>(places_.size()));
  }
}

std::uint32_t LabelNames::place(const std::string& label, const std::string& file) {
  constexpr std::size_t most = 10'000;
  const auto [at, is_new] = places_.try_emplace(label, static_cast<std::uint32_t>(names_.size()));
  if (is_new) {
    names_.push_back(label);
    if (names_.size() > most) {
      fail_input({.thing = file,
                  .wrong = "the records have too many different labels",
                  .expected = fmt::format("at most {}", most)});
    }
  }
  return at->second;
}

void LabelNames::add(const std::string& label, const std::string& file) {
  of_.push_back(place(label, file));
}

}  // namespace tessera::data
