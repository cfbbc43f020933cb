export module tessera.app.base:stopwatch;

import :standard;

// How long something takes.

export namespace tessera::app {

/// Seconds in which `run` returns, on a clock that never goes back.
double seconds_of(const std::function<void()>& run);

/// The middle one of several values, at least one; of an even number, the mean of both.
double median(std::vector<double> values);

}  // namespace tessera::app
