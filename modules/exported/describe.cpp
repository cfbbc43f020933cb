// What is in a program, for people.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :graph;
import :program;

namespace tessera::exported {
namespace {

/// "s0 (2 to 64)".
std::string symbol_text(const ExportedGraph& graph, const std::string& symbol) {
  const DimRange range = range_of(graph, symbol);
  return range.high == DimRange::unbounded
             ? fmt::format("{} (from {})", symbol, range.low)
             : fmt::format("{} ({} to {})", symbol, range.low, range.high);
}

/// "20 tensors, 41248 elements".
std::string tensors_text(const ExportedGraph& graph, bool parameters) {
  std::set<std::string> storages;
  std::int64_t elements = 0;
  std::size_t names = 0;
  for (const GraphInput& input : graph.inputs) {
    if (input.role != InputRole::user && (input.role == InputRole::parameter) == parameters) {
      ++names;
      if (storages.insert(input.storage).second) {
        elements += Dims(graph.values[static_cast<std::size_t>(input.value)].shape).product();
      }
    }
  }
  return fmt::format("{} names of {} tensors, {} elements", names, storages.size(), elements);
}

std::string blocks_text(const ExportedGraph& graph) {
  std::map<std::string, int> lists;
  for (const std::string& block : blocks_of(graph)) {
    ++lists[block.substr(0, block.rfind('.') + 1)];
  }
  std::vector<std::string> texts;
  for (const auto& [list, count] : lists) {
    texts.push_back(fmt::format("{} of {}*", count, shown(list, 120)));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

DimRange range_of(const ExportedGraph& graph, const std::string& symbol) {
  const auto found = graph.ranges.find(symbol);
  return found == graph.ranges.end() ? DimRange{} : found->second;
}

std::string type_text(const ExportedGraph& graph, const GraphValue& value) {
  std::vector<std::string> dims;
  for (std::size_t d = 0; d < value.shape.size(); ++d) {
    dims.push_back(value.shape[d] >= 0        ? fmt::format("{}", value.shape[d])
                   : value.symbols[d].empty() ? "?"
                                              : symbol_text(graph, value.symbols[d]));
  }
  return fmt::format("{}[{}]", name_of(value.dtype), fmt::join(dims, ", "));
}

std::vector<std::pair<std::string, std::string>> described(const ExportedGraph& graph) {
  const auto value = [&](int place) -> const GraphValue& {
    return graph.values[static_cast<std::size_t>(place)];
  };
  std::vector<std::pair<std::string, std::string>> rows = {
      {"program",
       fmt::format("{}, written by PyTorch {}", graph.path, shown(graph.torch_version, 40))}};
  for (const GraphInput& input : graph.inputs) {
    if (input.role == InputRole::user) {
      rows.emplace_back("input", fmt::format("{} {}", shown(value(input.value).name, 80),
                                             type_text(graph, value(input.value))));
    }
  }
  for (const int output : graph.outputs) {
    rows.emplace_back("output", type_text(graph, value(output)));
  }
  rows.emplace_back("parameters", tensors_text(graph, true));
  rows.emplace_back("buffers", tensors_text(graph, false));
  rows.emplace_back("written buffers", fmt::format("{}", graph.updates.size()));
  rows.emplace_back("blocks", blocks_text(graph));
  std::map<std::string, std::size_t> counts;
  for (const GraphNode& node : graph.nodes) {
    ++counts[node.target];
  }
  rows.emplace_back("operators", fmt::format("{} in {} calls", counts.size(), graph.nodes.size()));
  std::vector<std::pair<std::string, std::size_t>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(),
                           &std::pair<std::string, std::size_t>::second);
  for (const auto& [name, count] : sorted) {
    rows.emplace_back("", fmt::format("{} {}", count, shown(name, 120)));
  }
  return rows;
}

}  // namespace tessera::exported
