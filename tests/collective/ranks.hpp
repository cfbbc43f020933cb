// What tests on several ranks share. Include it after the imports.
#pragma once
#include "errors.hpp"

namespace collective_test {

using tessera::testing::check;

/// Runs so many ranks as threads, as threads of several simulated machines, and as processes.
inline void on_all_kinds_of_ranks(int ranks,
                                  const std::function<void(tessera::collective::World&)>& run) {
  for (const int machines : {1, 2, ranks}) {
    INFO(machines << " machines");
    REQUIRE_NOTHROW(tessera::collective::run_threads(ranks, run, {.machines = machines}));
  }
  REQUIRE(tessera::collective::launch({.ranks = ranks}, [&](tessera::collective::World& world) {
            run(world);
            return 0;
          }) == 0);
}

}  // namespace collective_test
