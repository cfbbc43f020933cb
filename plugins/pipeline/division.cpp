#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.nn;

#include "division.hpp"

namespace pipeline_style {

using namespace tessera;

std::vector<double> costs_of(nn::LanguageModel& model) {
  std::vector<double> costs;
  for (const std::vector<std::string>& names : model.pieces()) {
    std::set<const nn::Parameter*> counted;
    double cost = 0;
    for (nn::Module* const piece : nn::all_modules(model)) {
      if (std::ranges::find(names, piece->name()) == names.end()) {
        continue;
      }
      for (const nn::Module* const module : nn::all_modules(*piece)) {
        const bool looked_up = dynamic_cast<const nn::Embedding*>(module) != nullptr ||
                               dynamic_cast<const nn::PositionEmbedding*>(module) != nullptr;
        for (const auto& [key, parameter] : module->parameters()) {
          const bool first = counted.insert(parameter.get()).second;
          cost += looked_up || !first ? 0 : static_cast<double>(parameter->value.numel());
        }
        for (const nn::PackedWeight& weight : module->packed_weights()) {
          cost += static_cast<double>(weight.shape.product());
        }
      }
    }
    costs.push_back(cost);
  }
  return costs;
}

std::vector<std::size_t> balanced(const std::vector<double>& costs, std::size_t stages) {
  struct BestDivision {
    double largest = std::numeric_limits<double>::infinity();
    double squares = std::numeric_limits<double>::infinity();
    std::size_t begin = 0;  // of the last stage
    bool operator<(const BestDivision& other) const {
      return std::pair(largest, squares) < std::pair(other.largest, other.squares);
    }
  };
  const std::size_t count = costs.size();
  // best[s][n]: the first n pieces in s stages.
  std::vector<std::vector<BestDivision>> best(stages + 1, std::vector<BestDivision>(count + 1));
  best[0][0] = {.largest = 0, .squares = 0};
  for (std::size_t s = 1; s <= stages; ++s) {
    for (std::size_t n = s; n <= count; ++n) {
      double cost = 0;
      for (std::size_t begin = n; begin-- > s - 1;) {
        cost += costs[begin];
        const BestDivision& before = best[s - 1][begin];
        best[s][n] = std::min(best[s][n], BestDivision{.largest = std::max(before.largest, cost),
                                                       .squares = before.squares + cost * cost,
                                                       .begin = begin});
      }
    }
  }
  std::vector<std::size_t> begins(stages);
  for (std::size_t s = stages, n = count; s > 0; --s) {
    begins[s - 1] = best[s][n].begin;
    n = begins[s - 1];
  }
  return begins;
}

std::vector<std::size_t> by_hand(nn::LanguageModel& model, const std::vector<std::string>& split) {
  const std::vector<std::vector<std::string>> pieces = model.pieces();
  std::vector<std::string> names;
  for (const std::vector<std::string>& piece : pieces) {
    names.push_back(piece.front());
  }
  std::vector<std::size_t> begins{0};
  for (const std::string& name : split) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      fail_input(fmt::format("no stage can begin with '{}'{}", name, did_you_mean(name, names)));
    }
    const auto begin = static_cast<std::size_t>(found - names.begin());
    if (begin <= begins.back()) {
      fail_input(fmt::format("a stage begins with '{}', which is not after '{}'", name,
                             names[begins.back()]));
    }
    begins.push_back(begin);
  }
  return begins;
}

}  // namespace pipeline_style
