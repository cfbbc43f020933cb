module;
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>
module tessera.collective;

import tessera.base;
import :control;
import :launch;
import :region;
import :runner;
import :state;
import :world;

namespace tessera::collective {

void run_threads(int ranks, const std::function<void(World&)>& run, const LaunchOptions& options) {
  const std::size_t arena = options.arena_bytes != 0 ? options.arena_bytes : std::size_t{8} << 30;
  const std::shared_ptr<Region> region = Region::create(arena, true);
  Control* control = Control::create(*region, ranks);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  const auto run_rank = [&](int rank) {
    const RankIdentity identity(rank);
    try {
      const auto state = std::make_shared<WorldState>(region, rank, ranks, Transport::threads);
      state->report_after = options.report_seconds;
      World world(state);
      if (options.timeout_seconds > 0) {
        world.set_timeout(options.timeout_seconds);
      }
      try {
        run(world);
      } catch (const std::exception& error) {
        world.publish_error(error.what());
        throw;
      }
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back(run_rank, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const int first = control->first_error().rank;
  if (first >= 0 && errors[static_cast<std::size_t>(first)]) {
    std::rethrow_exception(errors[static_cast<std::size_t>(first)]);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

}  // namespace tessera::collective
