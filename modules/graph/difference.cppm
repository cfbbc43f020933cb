export module tessera.graph:difference;

import tessera.base;

export namespace tessera::graph {

/// The lines that differ, "- " before and "+ " after, in their order, each run of them below a line
/// "@ line N". Lines that occur once in both texts are matched.
std::string difference(std::string_view before, std::string_view after);

}  // namespace tessera::graph
