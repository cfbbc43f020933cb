// What telling costs rank 0: docs/performance-ranks.md has the figures.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.sinks;

using namespace tessera;
using namespace tessera::sinks;

namespace {

/// A sink that is as the function.
class SomeSink final : public Sink {
 public:
  explicit SomeSink(std::function<void()> take) : take_(std::move(take)) {}
  void take(std::span<const Event> /*events*/) override { take_(); }
  double patience() const override { return 0.2; }

 private:
  std::function<void()> take_;
};

/// Microseconds to tell of a step: its numbers and its phase. The median of many, and the 99th of a
/// hundred.
std::pair<double, double> cost(int sinks, const std::function<void()>& take) {
  EventStream stream;
  for (int i = 0; i < sinks; ++i) {
    stream.add(std::make_unique<SinkFeed>("some", std::make_unique<SomeSink>(take)));
  }
  NamedNumbers numbers;
  for (int i = 0; i < 20; ++i) {
    numbers.emplace_back("measure/number_" + std::to_string(i), 0.5 * i);
  }
  std::vector<double> times;
  for (int step = 1; step <= 20'000; ++step) {
    const auto start = std::chrono::steady_clock::now();
    stream.tell(StepNumbers{.step = step, .numbers = numbers});
    stream.tell(PhaseSpan{.name = "step", .step = step, .seconds = 0.1});
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // a step, of a very small model
  }
  stream.finish({});
  std::ranges::sort(times);
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

}  // namespace

TEST_CASE("what telling costs", "[.cost]") {
  set_log_level(LogLevel::error);
  const auto never = std::make_shared<std::atomic<bool>>(false);
  const std::vector<std::pair<const char*, std::function<void()>>> kinds = {
      {"takes all", [] {}},
      {"is away", [] { throw UnavailableError({.wrong = "is away"}); }},
      {"fails", [] { fail("broken"); }},
      {"hangs", [never] {
         while (!*never) {
           std::this_thread::sleep_for(std::chrono::milliseconds(10));
         }
       }}};
  std::printf("%-12s %8s %10s %10s\n", "sink", "sinks", "median us", "99% us");
  for (const auto& [name, take] : kinds) {
    for (const int sinks : {1, 4}) {
      const auto [median, late] = cost(sinks, take);
      std::printf("%-12s %8d %10.2f %10.2f\n", name, sinks, median, late);
      CHECK(median < 100);
    }
  }
  *never = true;
}
