module tessera.collective:runner;

import tessera.base;
import :control;
import :launch;
import :region;
import :state;
import :world;

namespace tessera::collective {

int exit_code_of(ErrorKind kind);

/// Address space for the region: as asked for, else as much as the machine has memory.
std::size_t arena_bytes(const LaunchOptions& options);

/// Runs one rank in the laid out region; its errors are published. Returns the exit code.
int run_rank(const std::shared_ptr<Region>& region, int rank, const LaunchOptions& options,
             Transport transport, const RankFunction& run);

/// Prints the first error, if there was one, with the flight recorder where ranks disagreed.
/// Returns the exit code; `code` where all went well.
int finish(Control& control, Region& region, const LaunchOptions& options, int code);

}  // namespace tessera::collective
