export module tessera.app.trace:draw;

import tessera.app.base;
import :read;

// `tessera trace draw`: a trace as a picture.

export namespace tessera::app {

/// An SVG with three rows for each rank: the modules in whose forward or backward its thread was;
/// what the thread did, operators or waits for other ranks; the collectives in streams of their
/// own. Time runs to the right, on one clock.
std::string draw_trace(const TraceData& trace);

}  // namespace tessera::app
