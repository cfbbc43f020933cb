module;
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.ranks;
import tessera.machines;
import tessera.communication;
import :start;
import :runner;
import :messages;

namespace tessera::collective {

void run_threads(int ranks, const std::function<void(World&)>& run, const LaunchOptions& options) {
  const std::size_t arena = options.arena_bytes != 0 ? options.arena_bytes : std::size_t{8} << 30;
  const int machines = std::clamp(options.machines, 1, ranks);
  std::vector<std::shared_ptr<Region>> regions;
  for (int m = 0; m < machines; ++m) {
    regions.push_back(Region::create(arena, true));
    Control::create(*regions.back(), ranks);
  }
  const auto hub = make_loopback_hub(ranks);
  auto* const control = reinterpret_cast<Control*>(regions.front()->base());
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  const auto run_rank = [&](int rank) {
    const RankIdentity identity(rank);
    const int machine = rank * machines / ranks;
    const std::shared_ptr<Region>& region = regions[static_cast<std::size_t>(machine)];
    std::unique_ptr<Bridge> bridge;
    try {
      if (machines > 1) {
        bridge = std::make_unique<Bridge>([&] { return make_loopback(hub); }, rank, ranks);
        bridge->meet(protocol_number(), fmt::format("machine {}", machine), wait_limit());
        bridge->attach(region, false);
      }
      World world({.region = region,
                   .rank = rank,
                   .size = ranks,
                   .transport = Transport::threads,
                   .bridge = bridge.get(),
                   .report_seconds = options.report_seconds});
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
    if (bridge != nullptr) {
      bridge->finish();
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
