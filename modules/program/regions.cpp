module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :regions;
import :statistics;

namespace tessera::graph {
namespace {

/// The first `depth` parts of a module's name.
std::string outer_name(const std::string& module, int depth) {
  std::size_t end = 0;
  for (int part = 0; part < depth && end != std::string::npos; ++part) {
    end = module.find('.', end == 0 ? 0 : end + 1);
  }
  return module.substr(0, end);
}

}  // namespace

bool is_within(const std::string& module, const std::string& outer) {
  return outer.empty() || module == outer || module.starts_with(outer + ".");
}

std::vector<Region> regions_of(const Program& program, const ProgramStatistics& statistics,
                               int depth, const std::string& within) {
  std::vector<Region> regions;
  PlaceIndex place;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      ++place;
      const ProgramScope& scope = program.scopes[i.scope];
      if (!is_within(scope.module, within)) {
        continue;
      }
      const std::string module = outer_name(scope.module, depth);
      const bool same = !regions.empty() && regions.back().section == section.kind &&
                        regions.back().phase == scope.phase && regions.back().module == module;
      if (!same) {
        regions.push_back(
            {.section = section.kind, .phase = scope.phase, .module = module, .first = place});
      }
      Region& region = regions.back();
      ++region.count;
      region.peak = std::max(region.peak, total_of(statistics.live[place]));
      if (is_collective(i)) {
        ++region.collectives[i.op->name];
      }
    }
  }
  return regions;
}

}  // namespace tessera::graph
