// Observers see what the communicators of their thread do, before it happens.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;

#include "ranks.hpp"

using namespace tessera;
using namespace tessera::collective;
using namespace collective_test;

namespace {

class Recorder final : public Observer {
 public:
  void perform(const Activity& activity, const std::function<void()>& run) override {
    note(std::string(name_of(activity.kind)), activity);
    run();
    if (activity.kind == Activity::Kind::issue) {
      bytes += activity.bytes;
      kinds.insert(activity.call.kind);
    }
  }
  void completed(const Activity& activity) override { note("completed", activity); }

  std::vector<std::string> seen;
  std::int64_t bytes = 0;
  std::set<CallKind> kinds;

 private:
  void note(const std::string& what, const Activity& activity) {
    seen.push_back(what + " " + to_string(activity.call) + " " + std::to_string(activity.sequence));
  }
};

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + "; ";
  }
  return text;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("an observer sees calls and waits, with numbers that agree on all ranks") {
  run_threads(2, [](World& world) {
    Communicator& group = world.communicator(std::vector{0, 1}, "observed");
    float mine = 1;
    float sum = 0;
    std::vector<float> all(2);
    Recorder recorder;
    {
      const ObserverScope scope(recorder);
      group.all_reduce(&mine, &sum, 1, DType::f32);
      Work work = group.all_gather_async(&mine, all.data(), 1, DType::f32);
      check(recorder.seen.back() == "issue all_gather(f32, 1) 1", recorder.seen.back());
      work.wait();
    }
    group.barrier();
    const Lines expected{"issue all_reduce(f32, 1, sum) 0",     "wait all_reduce(f32, 1, sum) 0",
                         "completed all_reduce(f32, 1, sum) 0", "issue all_gather(f32, 1) 1",
                         "wait all_gather(f32, 1) 1",           "completed all_gather(f32, 1) 1"};
    check(recorder.seen == expected, joined(recorder.seen));
    check(sum == 2 && all == std::vector<float>{1, 1}, "the calls have their results");
  });
}

TEST_CASE("a call is complete before the wait for it where another wait has completed it") {
  run_threads(2, [](World& world) {
    Communicator& group = world.everyone();
    std::vector<float> first(2);
    std::vector<float> second(2);
    const float mine = 1;
    Recorder recorder;
    const ObserverScope scope(recorder);
    Work a = group.all_gather_async(&mine, first.data(), 1, DType::f32);
    Work b = group.all_gather_async(&mine, second.data(), 1, DType::f32);
    b.wait();
    const Lines expected{"issue all_gather(f32, 1) 0", "issue all_gather(f32, 1) 1",
                         "wait all_gather(f32, 1) 1", "completed all_gather(f32, 1) 0",
                         "completed all_gather(f32, 1) 1"};
    check(recorder.seen == expected, joined(recorder.seen));
    a.wait();
  });
}

TEST_CASE("an observer counts the bytes that a rank must receive") {
  constexpr std::int64_t element = 4;
  // By hand: 3 ranks, 6 elements in a call; of all_reduce, two thirds are received twice.
  const std::map<std::string, std::vector<std::int64_t>> expected{
      {"all_reduce", {8, 8, 8}},        {"all_gather", {12, 12, 12}},
      {"reduce_scatter", {12, 12, 12}}, {"all_to_all", {12, 12, 12}},
      {"counted", {5, 3, 4}},           {"scatter_counted", {1, 0, 3}},
      {"broadcast", {6, 0, 6}},         {"scatter", {6, 0, 6}},
      {"gather", {0, 12, 0}},           {"reduce", {0, 12, 0}},
      {"barrier", {0, 0, 0}},           {"gather_segments", {5, 5, 6}},
      {"scatter_segments", {6, 6, 4}},  {"receive", {0, 0, 6}},
      {"reduce_segments", {8, 8, 8}},   {"shift", {6, 6, 6}},
      {"shift by 3", {0, 0, 0}}};
  std::mutex mutex;
  std::set<CallKind> kinds;
  run_threads(3, [&](World& world) {
    Communicator& group = world.everyone();
    const auto rank = static_cast<std::size_t>(world.rank());
    const auto from = [](std::size_t count) { return std::vector<float>(count, 1); };
    std::vector<float> source = from(18);
    std::vector<float> destination = from(18);
    float* const s = source.data();
    float* const d = destination.data();
    const auto sends = [&](const std::string& name, const std::function<void()>& run) {
      Recorder recorder;
      const ObserverScope scope(recorder);
      run();
      check(recorder.bytes == element * expected.at(name)[rank],
            name + ": " + std::to_string(recorder.bytes));
      const std::scoped_lock lock(mutex);
      kinds.merge(recorder.kinds);
    };
    sends("all_reduce", [&] { group.all_reduce(s, d, 6, DType::f32); });
    sends("all_gather", [&] { group.all_gather(s, d, 6, DType::f32); });
    sends("reduce_scatter", [&] { group.reduce_scatter(s, d, 6, DType::f32); });
    sends("all_to_all", [&] { group.all_to_all(s, d, 6, DType::f32); });
    // Rank r sends rank p as many elements as row r has in column p, some of them to itself.
    const std::vector<std::vector<std::int64_t>> counts{{1, 2, 3}, {3, 1, 1}, {2, 1, 0}};
    sends("counted", [&] {
      std::vector<std::int64_t> arriving;
      for (const std::vector<std::int64_t>& row : counts) {
        arriving.push_back(row[rank]);
      }
      group.all_to_all(s, counts[rank], d, arriving, DType::f32);
    });
    const std::vector<std::int64_t> scattered{1, 2, 3};
    sends("scatter_counted",
          [&] { group.scatter(s, scattered, d, scattered[rank], DType::f32, 1); });
    sends("broadcast", [&] { group.broadcast(d, 6, DType::f32, 1); });
    sends("scatter", [&] { group.scatter(s, d, 6, DType::f32, 1); });
    sends("gather", [&] { group.gather(s, d, 6, DType::f32, 1); });
    sends("reduce", [&] { group.reduce(s, d, 6, DType::f32, ReduceOp::sum, 1); });
    sends("shift", [&] { group.shift(s, d, 6, DType::f32); });
    sends("shift by 3", [&] { group.shift(s, d, 6, DType::f32, 3); });
    sends("barrier", [&] { group.barrier(); });
    // 8 elements in pieces of 3: 3, 3 and 2.
    const Segment gathered{s, d, 3, 8};
    sends("gather_segments", [&] { group.all_gather({&gathered, 1}, DType::f32); });
    sends("scatter_segments", [&] { group.reduce_scatter({&gathered, 1}, DType::f32); });
    const Segment in_place{s, s, 0, 6};
    sends("reduce_segments", [&] { group.all_reduce_async({&in_place, 1}, DType::f32).wait(); });
    sends("receive", [&] {
      if (rank == 0) {
        group.send(s, 6, DType::f32, 2);
      } else if (rank == 2) {
        group.receive(d, 6, DType::f32, 0);
      }
    });
    group.wait_sources_free();
  });
  for (int kind = 0; kind <= static_cast<int>(CallKind::receive); ++kind) {
    INFO(name_of(static_cast<CallKind>(kind)));
    CHECK(kinds.contains(static_cast<CallKind>(kind)));
  }
}

TEST_CASE("a call of any kind that the table of forms has can be issued") {
  run_threads(3, [](World& world) {
    Communicator& group = world.everyone();
    const auto mine = static_cast<float>(world.rank());
    std::vector<float> all(3, -1);
    group.issue(CallKind::gather, &mine, all.data(), 1, DType::f32, ReduceOp::sum, 1).wait();
    check(all == (world.rank() == 1 ? std::vector<float>{0, 1, 2} : std::vector<float>(3, -1)),
          "gather");
    bool refused = false;
    try {
      group.issue(CallKind::all_gather_segments, &mine, all.data(), 1, DType::f32).wait();
    } catch (const Error&) {
      refused = true;
    }
    check(refused, "a list has a function of its own");
  });
}

TEST_CASE("what ranks of other machines send follows from the form of a call") {
  const GroupSpread spread{.ranks = 8, .machines = 2, .together = 4};
  for (int number = 0; number <= static_cast<int>(CallKind::receive); ++number) {
    const auto kind = static_cast<CallKind>(number);
    INFO(name_of(kind));
    const bool by_pairs = base_of(kind) == CallKind::all_to_all;
    CHECK(share_between(kind, spread) == (by_pairs ? 4.0 / 7 : 1.0 / 7));
  }
  CHECK(rounds_of(1) == 0);
  CHECK(rounds_of(2) == 1);
  CHECK(rounds_of(5) == 3);
}

TEST_CASE("a wait takes the time until the last rank has issued the call") {
  class Waiting final : public Observer {
   public:
    void perform(const Activity& activity, const std::function<void()>& run) override {
      const auto begin = std::chrono::steady_clock::now();
      run();
      if (activity.kind == Activity::Kind::wait) {
        seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
    }
    double seconds = 0;
  };
  run_threads(2, [](World& world) {
    world.everyone().barrier();
    Waiting waiting;
    const ObserverScope scope(waiting);
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
    }
    world.everyone().barrier();
    check(world.rank() == 1 || waiting.seconds > 0.04, "rank 0 waits for rank 1");
  });
}

TEST_CASE("observers of outer scopes see calls too, after inner ones, and only their thread's") {
  run_threads(2, [](World& world) {
    Recorder outer;
    Recorder inner;
    if (world.rank() == 0) {
      const ObserverScope outer_scope(outer);
      {
        const ObserverScope inner_scope(inner);
        world.everyone().barrier();
      }
      world.everyone().barrier();
      check(inner.seen.size() == 3 && outer.seen.size() == 6, joined(outer.seen));
    } else {
      world.everyone().barrier();
      world.everyone().barrier();
      check(outer.seen.empty() && inner.seen.empty(), "the observer is another thread's");
    }
  });
}

TEST_CASE("a simulated world shows its calls to observers") {
  const auto world = World::fake(0, 4);
  Recorder recorder;
  const ObserverScope scope(recorder);
  std::vector<float> x(8, 1);
  world->everyone().all_reduce(x.data(), x.data(), 8, DType::f32);
  CHECK(recorder.seen ==
        Lines{"issue all_reduce(f32, 8, sum) 0", "completed all_reduce(f32, 8, sum) 0"});
  CHECK(recorder.bytes == 2 * 3 * 32 / 4);
}
