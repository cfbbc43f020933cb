export module tessera.program:difference;

import tessera.base;

export namespace tessera::graph {

/// Without their ends, in the text's memory.
std::vector<std::string_view> lines_of(std::string_view text);

/// The lines that differ, "- " before and "+ " after, in their order, each run of them below a line
/// "@ line N". Lines that occur once in both texts are matched.
std::string difference(std::string_view before, std::string_view after);

}  // namespace tessera::graph
