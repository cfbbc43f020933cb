export module tessera.app.base:stopwatch;

import :standard;

// How long something takes.

export namespace tessera::app {

/// Seconds in which `run` returns, on a clock that never goes back.
double seconds_of(const std::function<void()>& run);

}  // namespace tessera::app
