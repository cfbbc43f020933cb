#include "on_ranks.hpp"

import tessera.base;
import tessera.tensor;
import tessera.collective;

namespace tessera::testing {

void on_ranks(int ranks, const std::function<void(int rank)>& f) {
  collective::LaunchOptions options;
  options.timeout_seconds = 60;
  options.print_error = false;
  collective::run_threads(
      ranks,
      [&](collective::World& world) {
        set_seed(5);
        f(world.rank());
      },
      options);
}

void on_ranks(std::initializer_list<int> counts, const std::function<void(int rank)>& f) {
  for (const int ranks : counts) {
    on_ranks(ranks, f);
  }
}

}  // namespace tessera::testing
