module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
module tessera.data;

import tessera.base;

namespace tessera::data {

void LabelNames::add(const std::string& label, const std::string& file) {
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
  of_.push_back(at->second);
}

}  // namespace tessera::data
