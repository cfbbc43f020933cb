module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.device;

import tessera.base;

namespace tessera {

std::string memory_table(std::span<const HeldMemory> held) {
  struct Sum {
    std::size_t bytes = 0;
    std::size_t blocks = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> by_owner;
  for (const auto& [owner, bytes] : held) {
    Sum& sum = by_owner[{std::string(name_of(owner.category)),
                         owner.module == nullptr ? "-" : *owner.module}];
    sum.bytes += bytes;
    ++sum.blocks;
  }
  std::vector<std::pair<std::pair<std::string, std::string>, Sum>> rows(by_owner.begin(),
                                                                        by_owner.end());
  std::ranges::sort(rows, std::greater<>(), [](const auto& row) { return row.second.bytes; });
  std::string text =
      fmt::format("  {:<14} {:>12} {:>8}  {}", "category", "in use", "blocks", "module");
  constexpr std::size_t most = 20;
  for (std::size_t i = 0; i < rows.size() && i < most; ++i) {
    const auto& [owner, sum] = rows[i];
    text += fmt::format("\n  {:<14} {:>12} {:>8}  {}", owner.first, format_bytes(sum.bytes),
                        sum.blocks, owner.second);
  }
  if (rows.size() > most) {
    text += fmt::format("\n  and {} more rows", rows.size() - most);
  }
  return text;
}

}  // namespace tessera
