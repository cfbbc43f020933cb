// Sinks that are slow, dead or wrong: what they get, what is counted, and that nobody waits for
// them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tessera/log_listener.hpp>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.sinks;

using namespace tessera;
using namespace tessera::sinks;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// What a sink of the test has received.
struct Received {
  std::mutex mutex = {};
  std::vector<Event> events = {};
  bool finished = false;
  std::atomic<int> calls{0};
  std::atomic<bool> is_gone{false};  // it was destroyed

  std::vector<std::int64_t> steps() {
    const std::lock_guard lock(mutex);
    std::vector<std::int64_t> all;
    for (const Event& event : events) {
      if (const auto* step = std::get_if<StepNumbers>(&event.content)) {
        all.push_back(step->step);
      }
    }
    return all;
  }
  template <class T>
  int count() {
    const std::lock_guard lock(mutex);
    return static_cast<int>(std::ranges::count_if(
        events, [](const Event& event) { return std::holds_alternative<T>(event.content); }));
  }
};

/// What it does before it takes a batch; the number of the call, from 1.
using Before = std::function<void(int call)>;

class TestSink final : public Sink {
 public:
  TestSink(std::shared_ptr<Received> received, Before before, double patience)
      : received_(std::move(received)), before_(std::move(before)), patience_(patience) {}
  ~TestSink() override { received_->is_gone = true; }
  void take(std::span<const Event> events) override {
    before_(++received_->calls);
    const std::lock_guard lock(received_->mutex);
    received_->events.insert(received_->events.end(), events.begin(), events.end());
  }
  void finish(double seconds) override {
    CHECK(seconds <= patience_);
    const std::lock_guard lock(received_->mutex);
    received_->finished = true;
  }
  double patience() const override { return patience_; }

 private:
  std::shared_ptr<Received> received_;
  Before before_;
  double patience_;
};

const FeedLimits quick = {.pause = 0.002, .first_retry = 0.001, .longest_retry = 0.004};

struct Fed {
  std::shared_ptr<Received> received = std::make_shared<Received>();
  std::unique_ptr<SinkFeed> feed;

  explicit Fed(
      Before before = [](int) {}, const FeedLimits& limits = quick, double patience = 5)
      : feed(std::make_unique<SinkFeed>(
            "sinks[0] (test)", std::make_unique<TestSink>(received, std::move(before), patience),
            limits)) {}
  void tell(EventContent content) const {
    feed->tell(std::make_shared<const Event>(Event{.time = 1, .content = std::move(content)}));
  }
  void tell_steps(std::int64_t first, std::int64_t last) const {
    for (std::int64_t step = first; step <= last; ++step) {
      tell(StepNumbers{.step = step, .numbers = {{"loss", 1.0}}});
    }
  }
  FeedCounts finish() const {
    feed->finish();
    return feed->counts();
  }
};

/// Every event is somewhere.
void adds_up(const FeedCounts& counts) { CHECK(counts.told == counts.delivered + counts.lost()); }

std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = first; i <= last; ++i) {
    all.push_back(i);
  }
  return all;
}

/// The lines that are logged while it lives.
struct Logged {
  std::shared_ptr<std::pair<std::mutex, std::vector<std::string>>> lines =
      std::make_shared<std::pair<std::mutex, std::vector<std::string>>>();
  LogListener listener{[lines = lines](const LogEntry& line) {
    const std::lock_guard lock(lines->first);
    lines->second.emplace_back(line.text);
  }};
  std::vector<std::string> all() const {
    const std::lock_guard lock(lines->first);
    return lines->second;
  }
  int with(std::string_view text) const {
    return static_cast<int>(std::ranges::count_if(
        all(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
};

}  // namespace

TEST_CASE("a sink gets all events in their order, in a thread of its own") {
  std::thread::id thread;
  const Fed fed([&](int) { thread = std::this_thread::get_id(); });
  fed.tell(RunStart{.run = "r"});
  fed.tell_steps(1, 3000);
  fed.tell(RunEnd{});
  const FeedCounts counts = fed.finish();
  CHECK(counts.told == 3002);
  CHECK(counts.delivered == 3002);
  CHECK(counts.lost() == 0);
  CHECK(fed.received->steps() == numbers(1, 3000));
  CHECK(std::holds_alternative<RunStart>(fed.received->events.front().content));
  CHECK(std::holds_alternative<RunEnd>(fed.received->events.back().content));
  CHECK(fed.received->finished);
  CHECK(fed.received->is_gone);
  CHECK(thread != std::this_thread::get_id());
}

TEST_CASE("a full queue loses the oldest numbers, and neither the start nor the end") {
  const Logged logged;
  std::atomic<bool> open{false};
  FeedLimits limits = quick;
  limits.events = 100;
  limits.batch = 10;
  const Fed fed(
      [&](int) {
        while (!open) {
          sleep(0.001);
        }
      },
      limits);
  fed.tell(RunStart{.run = "r"});
  while (fed.received->calls == 0) {  // the start is in its hand
    sleep(0.001);
  }
  fed.tell_steps(1, 1000);
  fed.tell(RunEnd{});
  open = true;
  const FeedCounts counts = fed.finish();
  CHECK(counts.dropped == 901);
  CHECK(counts.delivered == 101);
  adds_up(counts);
  CHECK(fed.received->steps() == numbers(902, 1000));
  CHECK(fed.received->count<RunStart>() == 1);
  CHECK(fed.received->count<RunEnd>() == 1);
  CHECK(logged.with("sinks[0] (test): does not keep up with the run, and loses events") == 1);
  CHECK(logged.with("sinks[0] (test): 901 of 1002 events were lost, 901 as its queue was full") ==
        1);
}

TEST_CASE("the queue is bounded in bytes, and an event that is too large is lost alone") {
  FeedLimits limits = quick;
  limits.bytes = 100'000;
  std::atomic<bool> open{false};
  const Fed fed(
      [&](int) {
        while (!open) {
          sleep(0.001);
        }
      },
      limits);
  fed.tell(LogLine{.text = "first"});
  while (fed.received->calls == 0) {
    sleep(0.001);
  }
  fed.tell(LogLine{.text = "small"});
  fed.tell(LogLine{.text = std::string(50'000, 'x')});
  CHECK(fed.feed->counts().dropped == 1);
  for (int i = 0; i < 20; ++i) {
    fed.tell(LogLine{.text = std::string(20'000, 'x')});
  }
  fed.tell(RunStart{.run = "r", .config = std::string(90'000, ' ')});  // is kept, whatever it takes
  open = true;
  const FeedCounts counts = fed.finish();
  adds_up(counts);
  CHECK(counts.dropped >= 18);
  CHECK(fed.received->count<RunStart>() == 1);
}

TEST_CASE("a sink that was not available gets the same events again") {
  const Logged logged;
  const Fed fed([](int call) {
    if (call <= 5) {
      throw UnavailableError({.thing = "test", .wrong = "is away"});
    }
  });
  fed.tell(RunStart{});
  fed.tell_steps(1, 50);
  const FeedCounts counts = fed.finish();
  CHECK(counts.delivered == 51);
  CHECK(counts.lost() == 0);
  CHECK(fed.received->steps() == numbers(1, 50));
  CHECK(logged.with("sinks[0] (test): test: is away; the run goes on") == 1);
  CHECK(logged.with("sinks[0] (test): receives events again; the run goes on") == 1);
  CHECK(logged.all().size() == 2);
}

TEST_CASE("a sink says how long it is to be left alone") {
  const auto start = Clock::now();
  FeedLimits limits = quick;
  limits.longest_retry = 30;
  std::atomic<double> second{0};
  const Fed fed(
      [&](int call) {
        if (call == 1) {
          throw UnavailableError({.wrong = "is away"}, 0.3);
        }
        second = since(start);
      },
      limits);
  fed.tell_steps(1, 1);
  while (fed.received->calls < 2) {
    sleep(0.005);
  }
  CHECK(fed.finish().delivered == 1);
  CHECK(second >= 0.3);
}

TEST_CASE("what is never taken is given up after some tries, but not the start") {
  FeedLimits limits = quick;
  limits.tries = 4;
  const Fed fed(
      [](int call) {
        if (call <= 20) {
          throw UnavailableError({.wrong = "is away"});
        }
      },
      limits);
  fed.tell(RunStart{});
  while (fed.received->calls < 8) {
    sleep(0.001);
  }
  CHECK(fed.feed->counts().refused == 0);
  while (fed.received->count<RunStart>() == 0) {
    sleep(0.001);
  }
  fed.finish();

  const Fed others([](int) { throw UnavailableError({.wrong = "is away"}); }, limits);
  others.tell_steps(1, 1);
  while (others.feed->counts().refused == 0) {
    sleep(0.001);
  }
  CHECK(others.received->calls == 4);
}

TEST_CASE("what a sink throws is said once, and counted") {
  const Logged logged;
  SECTION("an Error") {
    const Fed fed([](int) { fail({.thing = "test", .wrong = "is broken"}); });
    fed.tell_steps(1, 500);
    sleep(0.05);
    fed.tell_steps(501, 700);
    const FeedCounts counts = fed.finish();
    CHECK(counts.refused == 700);
    CHECK(logged.with("test: is broken; the run goes on") == 1);
    CHECK(logged.with("700 of 700 events were lost, 700 as it failed") == 1);
    CHECK(logged.all().size() == 2);
  }
  SECTION("an interrupt is no request to stop the run") {
    const Fed fed([](int) { throw Error("stop", ErrorKind::interrupted); });
    fed.tell_steps(1, 3);
    CHECK(fed.finish().refused == 3);
  }
  SECTION("another exception") {
    const Fed fed([](int) { throw std::runtime_error("odd"); });
    fed.tell_steps(1, 3);
    CHECK(fed.finish().refused == 3);
    CHECK(logged.with("odd") == 1);
  }
  SECTION("what is no exception") {
    const Fed fed([](int) { throw 42; });
    fed.tell_steps(1, 3);
    CHECK(fed.finish().refused == 3);
    CHECK(logged.with("it throws what is not a std::exception") == 1);
  }
}

TEST_CASE("failures that come and go do not fill the terminal") {
  const Logged logged;
  const Fed fed([](int call) {
    if (call % 2 == 0) {
      fail({.thing = "test", .wrong = "is broken"});
    }
  });
  for (int i = 0; i < 60; ++i) {
    fed.tell_steps(i, i);
    sleep(0.004);
  }
  adds_up(fed.finish());
  CHECK(logged.all().size() <= 6);
}

TEST_CASE("the end of a run waits for a limited time, and says what is left") {
  const Logged logged;
  const Fed fed([](int) { throw UnavailableError({.wrong = "is away"}); }, quick, 0.2);
  fed.tell(RunStart{});
  fed.tell_steps(1, 9);
  const auto start = Clock::now();
  const FeedCounts counts = fed.finish();
  CHECK(since(start) >= 0.2);
  CHECK(since(start) < 2);
  CHECK(counts.undelivered == 10);
  CHECK_FALSE(counts.hangs);
  adds_up(counts);
  CHECK(logged.with("10 of 10 events were lost, 10 as the run has ended") == 1);
}

TEST_CASE("a sink that never returns is left alone, and ends nothing") {
  const Logged logged;
  const auto open = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<Received> received;
  {
    const Fed fed(
        [open](int) {
          while (!*open) {
            sleep(0.001);
          }
        },
        quick, 0.1);
    received = fed.received;
    fed.tell_steps(1, 5);
    while (received->calls == 0) {
      sleep(0.001);
    }
    fed.tell_steps(6, 10);
    const auto start = Clock::now();
    const FeedCounts counts = fed.finish();
    CHECK(since(start) < 2);
    CHECK(counts.hangs);
    CHECK(counts.undelivered == 10);
    CHECK(logged.with("10 of 10 events were lost, 10 as the run has ended; it does not return") ==
          1);
    fed.tell_steps(11, 11);  // nobody takes it
    CHECK(fed.feed->counts().dropped == 1);
  }
  CHECK_FALSE(received->is_gone);
  *open = true;  // after its feed: it still has all that it uses
  for (int i = 0; i < 2000 && !received->is_gone; ++i) {
    sleep(0.001);
  }
  CHECK(received->is_gone);
}

TEST_CASE("who tells does not wait for a sink that hangs") {
  const auto open = std::make_shared<std::atomic<bool>>(false);
  const Fed fed(
      [open](int) {
        while (!*open) {
          sleep(0.001);
        }
      },
      quick, 0.1);
  double longest = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto start = Clock::now();
    fed.tell_steps(i, i);
    longest = std::max(longest, since(start));
  }
  CHECK(longest < 1);  // not the sink's time, on a machine however busy
  const FeedCounts counts = fed.finish();
  CHECK(counts.told == 20000);
  *open = true;
}

TEST_CASE("one stream has several sinks, of which the worst holds up no other one") {
  const auto good = std::make_shared<Received>();
  const auto bad = std::make_shared<Received>();
  const auto open = std::make_shared<std::atomic<bool>>(false);
  EventStream stream;
  stream.add(std::make_unique<SinkFeed>("bad",
                                        std::make_unique<TestSink>(
                                            bad,
                                            [open](int) {
                                              while (!*open) {
                                                sleep(0.001);
                                              }
                                            },
                                            0.3),
                                        quick));
  stream.add(
      std::make_unique<SinkFeed>("good", std::make_unique<TestSink>(good, [](int) {}, 0.3), quick));
  stream.tell(RunStart{});
  for (int i = 1; i <= 100; ++i) {
    stream.tell(StepNumbers{.step = i});
  }
  stream.tell(LogLine{.text = std::string(1'000'000, 'x')});
  stream.finish({.outcome = Outcome::done, .step = 100});
  stream.tell(StepNumbers{.step = 101});  // too late
  CHECK(good->steps() == numbers(1, 100));
  CHECK(good->count<RunEnd>() == 1);
  const auto* const line = std::get_if<LogLine>(&good->events[101].content);
  REQUIRE(line != nullptr);
  CHECK(line->text.size() < 70'000);
  const std::vector<FeedCounts> counts = stream.counts();
  CHECK(counts[0].hangs);
  CHECK(counts[1].lost() == 0);
  *open = true;
  while (!bad->is_gone) {
    sleep(0.001);
  }
}

TEST_CASE("10,000 faults in any order: all events are accounted for, none comes twice or late") {
  std::mt19937 random(7);
  std::atomic<int> faults{0};
  std::uint64_t told = 0;
  for (int round = 0; faults < 10'000; ++round) {
    const unsigned seed = random();
    FeedLimits limits = {.events = 50 + seed % 100,
                         .batch = 1 + seed % 7,
                         .pause = 0.0001,
                         .first_retry = 0.00001,
                         .longest_retry = 0.0001,
                         .tries = 1 + static_cast<int>(seed % 5)};
    const auto draws = std::make_shared<std::mt19937>(seed);
    const Fed fed(
        [draws, &faults](int) {
          switch ((*draws)() % 5) {
            case 0:
              ++faults;
              throw UnavailableError({.wrong = "is away"}, 0.00001);
            case 1:
              ++faults;
              fail("broken");
            case 2:
              ++faults;
              throw std::runtime_error("odd");
            case 3:
              ++faults;
              sleep(0.0002);
              throw 42;
            default:
              break;
          }
        },
        limits);
    set_log_level(LogLevel::error);
    fed.tell(RunStart{});
    for (int i = 1; i <= 1000; ++i) {
      fed.tell_steps(i, i);
      if (i % 100 == 0) {
        sleep(0.001);
      }
    }
    fed.tell(RunEnd{});
    const FeedCounts counts = fed.finish();
    set_log_level(LogLevel::warning);
    INFO("round " << round << ", seed " << seed);
    CHECK(counts.told == 1002);
    adds_up(counts);
    CHECK_FALSE(counts.hangs);
    CHECK(counts.delivered == fed.received->events.size());
    const std::vector<std::int64_t> steps = fed.received->steps();
    CHECK(std::ranges::adjacent_find(steps, std::greater_equal<>()) == steps.end());
    told += counts.told;
  }
  CHECK(told > 0);
}
