export module tessera.program:regions;

import tessera.base;
import :index;
import :instructions;
import :roles;
import :statistics;

export namespace tessera::graph {

/// Instructions that follow one another, of one phase in one part of the model.
struct Region {
  SectionKind section = SectionKind::step;
  Phase phase = Phase::none;
  std::string module = {};
  PlaceIndex first;
  int count = 0;
  std::map<std::string, int> collectives = {};  // by operator: calls
  std::int64_t peak = 0;                        // bytes that are needed at once, inputs included
};

/// The regions of a program in their order. Modules are told apart by the first `depth` parts of
/// their names, and only those `within` one are taken; "": all.
std::vector<Region> regions_of(const Program& program, const ProgramStatistics& statistics,
                               int depth, const std::string& within = "");

/// Whether it is `outer` or inside of it; everything is inside of "".
bool is_within(const std::string& module, const std::string& outer);

}  // namespace tessera::graph
