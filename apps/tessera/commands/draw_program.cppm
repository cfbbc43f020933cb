export module tessera.app.commands:draw_program;

import tessera.program;
import tessera.app.base;

// A picture of a captured step.

export namespace tessera::app {

/// An SVG picture of a program, from the first call at the left to the last one at the right, each
/// as wide as any other: phases, modules, collectives from their issue to their wait, and below
/// them the memory that each call needs, by category. Errors: see graph::statistics_of.
std::string draw_program(const Program& program);

}  // namespace tessera::app
