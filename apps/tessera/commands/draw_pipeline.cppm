export module tessera.app.commands:draw_pipeline;

import tessera.pipeline;
import tessera.app.base;

// A picture of the schedule of a pipeline.

export namespace tessera::app {

/// An SVG with a row for each rank: what it computes, with the numbers of the micro-batches.
std::string draw_pipeline(const pipeline::Schedule& schedule,
                          const pipeline::Simulation& simulation);

}  // namespace tessera::app
