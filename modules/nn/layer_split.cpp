module;
#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;

namespace tessera::nn {

std::vector<LayerSplit> splits_of(const Module& module) {
  const LayerSplits& splits = module.attached<LayerSplits>();
  return splits.declared ? splits.declared() : std::vector<LayerSplit>();
}

LayerSplit split_of(const Module& module, std::string_view name) {
  std::vector<std::string> known;
  for (LayerSplit& split : splits_of(module)) {
    if (split.name == name) {
      return std::move(split);
    }
    known.push_back(split.name);
  }
  fail_input(
      fmt::format("module '{}' is a {}, which declares no split by {} (its splits: {}); choose "
                  "layers that declare it in nn::LayerSplits, as Linear and Embedding declare "
                  "columns and rows",
                  module.name(), module.kind(), name, known.empty() ? "none" : join_words(known)));
}

void use_split(const Module& module, std::string_view name) {
  if (const LayerSplits& splits = module.attached<LayerSplits>(); splits.use) {
    splits.use(name);
  }
}

void check_placements(const Module& module, std::span<const int> axes) {
  if (const LayerSplits& splits = module.attached<LayerSplits>(); splits.check) {
    splits.check(axes);
  }
}

}  // namespace tessera::nn
