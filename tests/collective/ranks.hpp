// What tests on several ranks share. Include it after the imports.
#pragma once

namespace collective_test {

/// Fails the rank, and with it the test; Catch's assertions are not for several threads.
inline void expect(bool condition, const std::string& what) {
  if (!condition) {
    tessera::fail("expectation failed: " + what);
  }
}

/// Runs the same ranks as threads and as processes.
inline void on_ranks(int ranks, const std::function<void(tessera::collective::World&)>& run) {
  REQUIRE_NOTHROW(tessera::collective::run_threads(ranks, run));
  REQUIRE(tessera::collective::launch({.ranks = ranks}, [&](tessera::collective::World& world) {
            run(world);
            return 0;
          }) == 0);
}

}  // namespace collective_test
