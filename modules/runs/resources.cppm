export module tessera.runs:resources;

import tessera.base;

// Time and memory of this process.

export namespace tessera::runs {

/// Seconds in which `run` returns, on a clock that never goes back.
double seconds_of(const std::function<void()>& run);

/// The middle one of several values, at least one; of an even number, the mean of both.
double median(std::vector<double> values);

/// Memory of this process.
struct Memory {
  std::uint64_t resident = 0;  // bytes of this process in memory now
  std::uint64_t peak = 0;      // the most they have been
};
/// As the system counts it.
Memory process_memory();

}  // namespace tessera::runs
