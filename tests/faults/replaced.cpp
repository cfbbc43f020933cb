// Runs on several machines that heal.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "machines.hpp"

using namespace faults;

TEST_CASE("ranks that die on two machines start again, with the bits of an undisturbed run") {
  const auto [kind, blows] =
      GENERATE(table<Kind, int>({{steps(mixed, 60), 3}, {steps(captured_pipeline, 60), 1}}));
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  Machines machines(folder, {healing(kind), healing(kind)});
  REQUIRE(trains(folder));
  for (int blow = 1; blow <= blows; ++blow) {
    const std::size_t done = steps_in(folder / "metrics.jsonl").size();
    REQUIRE(within(20, [&] { return steps_in(folder / "metrics.jsonl").size() > done + 5; }));
    const auto machine = static_cast<std::size_t>(blow % 2);
    const std::vector<pid_t> ranks = machines[machine].ranks();
    REQUIRE(ranks.size() == kind.ranks / 2);
    kill(ranks.back(), blow == 3 ? SIGSTOP : SIGKILL);
    REQUIRE(within(20, [&] {
      return count(machines[0].error(), "the run heals (") == blow &&
             count(machines[1].error(), "the run heals (") == blow;
    }));
  }
  for (const Result& result : machines.wait()) {
    INFO(result.out << result.error);
    CHECK(result.code == 0);
    CHECK(count(result.error, "error:") == 0);
    CHECK(count(result.error, ", which is in memory") == blows);
  }
  CHECK(ending_of(folder) == expected);
  CHECK(within(5, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

TEST_CASE("a machine that is lost is replaced, and the run has the bits of an undisturbed one") {
  // Without checkpoints before the end nothing can be read from one; with them, a machine that
  // comes later finds others than those that are there have found.
  const auto [kind, every, machines, lost] =
      GENERATE(table<Kind, const char*, std::size_t, std::vector<std::size_t>>(
          {{steps(mixed, 80), "checkpoint.every=0", 2, {1, 0}},
           {of_machines(3), "checkpoint.every=7", 3, {2, 0, 1}}}));
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const Words command = healing(kind, {every, "train.heal_wait=20"});
  Machines all(folder, std::vector<Words>(machines, command));
  REQUIRE(trains(folder));
  for (const std::size_t number : lost) {
    const std::vector<std::int64_t> done = steps_in(folder / "metrics.jsonl");
    REQUIRE(trains(folder, static_cast<std::size_t>(done.back()) + 5));
    all.lose(number);
    const std::size_t other = (number + 1) % machines;
    REQUIRE(within(10, [&] { return count(all[other].error(), " is lost") > 0; }));
    all.replace(folder, command, number);
    const bool taken =
        within(20, [&] { return count(all[number].error(), "takes the place of one") == 1; });
    for (std::size_t m = 0; !taken && m < machines; ++m) {
      UNSCOPED_INFO("machine " << m << ": " << all[m].error());
    }
    REQUIRE(taken);
    CHECK(count(all[number].error(), ", which is in memory") == 1);
  }
  all_end_as(folder, all, expected);
  CHECK(within(5, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
}

TEST_CASE(
    "a spare machine takes the place of a lost one, and ends with the run where none is lost") {
  const Kind kind = steps(mixed, 60);
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=20"});
  Machines machines(folder, {command, command});
  auto spare = machines.spare(folder, command, 2);
  auto idle = machines.spare(folder, command, 2);
  REQUIRE(trains(folder, 10));
  CHECK(spare->living().size() == 1);
  machines.lose(1);
  REQUIRE(within(
      20, [&] { return count(spare->error() + idle->error(), "takes the place of one") == 1; }));
  CHECK(count(machines[0].error(), "takes the place of machine 1") == 1);
  if (count(idle->error(), "takes the place of one") == 1) {
    std::swap(spare, idle);  // that one came first
  }
  machines.replace(1, std::move(spare));
  all_end_as(folder, machines, undisturbed(kind));
  REQUIRE(within(10, [&] { return idle->living().empty(); }));
  CHECK(count(idle->out(), "the run has ended and did not need it") == 1);
  CHECK(idle->error().empty());

  is_refused(folder, with(command, {"--spare"}), {"--spare", "--machines and --meet"});
  is_refused(folder,
             with(command, {"--machines", "2", "--spare", "--meet", "a:1", "--machine", "1"}),
             {"--spare", "--machine"});
  is_refused(folder, with(train(kind, {}), {"--machines", "2", "--spare", "--meet", "a:1"}),
             {"train.heal", "does not wait for another machine"});
}

TEST_CASE("a launcher that was silent takes its place again, with what it has") {
  const Kind kind = steps(captured_pipeline, 60);
  const Ending& expected = undisturbed(kind);
  const RunFolder folder;
  Machines machines(folder, {healing(kind), healing(kind)});
  REQUIRE(trains(folder, 10));
  machines[1].signal(SIGSTOP);  // its rank still runs
  REQUIRE(within(10, [&] { return count(machines[0].error(), "machine 1 of 2 is lost") == 1; }));
  machines[1].signal(SIGCONT);
  REQUIRE(heal(machines, {0, 1}, 1));
  all_end_as(folder, machines, expected);
}

TEST_CASE("two machines that have each other's states are replaced, and a checkpoint is loaded") {
  const Kind kind = of_machines(3);
  const Ending& expected = undisturbed(kind);
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=20"});
  Machines machines(folder, std::vector<Words>(3, command));
  REQUIRE(trains(folder, 10));
  REQUIRE(within(20, [&] {
    const Words saved = checkpoints(folder / "checkpoints");
    return std::ranges::any_of(
        saved, [](const auto& name) { return name.size() == std::string("step-00000007").size(); });
  }));
  machines.lose(1);
  machines.lose(2);
  // One that does not fit is refused, and the run waits on.
  REQUIRE(within(
      10, [&] { return count(machines[0].error(), "machines 1 and 2 of 3 are lost") == 1; }));
  const Result other =
      run(folder, with(command, with({"train.heal_limit=7"}, on_machine(1, 3, machines.port()))));
  INFO(other.error);
  CHECK(other.code == 2);
  CHECK(count(other.error, "error: launch: machine 1 (") == 1);
  CHECK(count(other.error, "has another config than machine 0") == 1);
  machines.replace(folder, command, 1);
  machines.replace(folder, command, 2);
  REQUIRE(heal(machines, {0, 1, 2}, 1));
  INFO(machines[0].error());
  CHECK(count(machines[0].error(), "start again from checkpoints/step-") == 1);
  all_end_as(folder, machines, expected);
}

namespace {

/// A launcher that waits no longer ends with an error, and nothing of it is left.
Result gives_up(Program& launcher) {
  Result result = launcher.wait(40);
  INFO(result.error);
  CHECK(result.code == 1);
  CHECK(result.left_running == 0);
  return result;
}

}  // namespace

TEST_CASE("nobody comes in the place of a lost machine, or no place is kept") {
  const RunFolder folder;
  const Words endless = healing(mixed, {"train.steps=1000000", "train.heal_wait=1"});
  SECTION("of machine 1") {
    Machines machines(folder, {endless, endless});
    REQUIRE(trains(folder));
    machines.lose(1);
    const Result result = gives_up(machines[0]);
    CHECK(count(result.error, "nobody has taken the place of machine 1 of 2") == 1);
    CHECK(count(result.error, "error: machine 1 (m1) is lost: its launcher has ended") == 1);
  }
  SECTION("of machine 0") {
    Machines machines(folder, {endless, endless});
    REQUIRE(trains(folder));
    machines.lose(0);
    const Result result = gives_up(machines[1]);
    CHECK(count(result.error, "error: launch: machine 0 cannot be reached at localhost:") == 1);
  }
  SECTION("as the user does not want to wait") {
    const Words patient = with(endless, {"train.heal_wait=100"});
    Machines machines(folder, {patient, patient, patient, patient});
    REQUIRE(trains(folder));
    machines.lose(1);
    REQUIRE(within(10, [&] { return count(machines[0].error(), "is lost; the run waits") == 1; }));
    machines[3].signal(SIGINT);
    for (const std::size_t m : {0, 2, 3}) {
      gives_up(machines[m]);
    }
  }
}

namespace {

struct Tally {
  int ranks = 0;
  int machines = 0;
  int silent = 0;
  std::int64_t lost = 0;  // steps, the most of one heal
  double seconds = 0;     // until ranks start again: from a blow, or from the new machine's start
};

double seconds_until(double limit, const std::function<bool()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(within(limit, what));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Hurts random machines at random moments, `blows` times, and compares the run's end with the
/// undisturbed run. Its steps must be enough.
Tally hurt(const Kind& kind, std::size_t machines, int blows, unsigned seed) {
  const Ending& expected = undisturbed(kind);
  const auto shared_before = shared_memory();
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=30"});
  std::mt19937 random(seed);
  Tally tally;
  Machines all(folder, std::vector<Words>(machines, command));
  REQUIRE(trains(folder));
  for (int blow = 0; blow < blows; ++blow) {
    const std::int64_t until =
        steps_in(folder / "metrics.jsonl").back() + 1 + static_cast<std::int64_t>(random() % 6);
    const bool goes_on =
        within(20, [&] { return steps_in(folder / "metrics.jsonl").back() >= until; });
    for (std::size_t m = 0; !goes_on && m < machines; ++m) {
      UNSCOPED_INFO("machine " << m << ": " << all[m].error());
    }
    REQUIRE(goes_on);
    const std::size_t hurt = random() % machines;
    Program& machine = all[hurt];
    const std::vector<pid_t> ranks = machine.ranks();
    if (ranks.size() != kind.ranks / machines) {
      continue;  // between two starts
    }
    const unsigned dice = random() % 10;
    const std::size_t witness = (hurt + 1) % machines;
    const int healed = count(all[witness].error(), "the run heals (");
    const auto heals = [&] { return count(all[witness].error(), "the run heals (") > healed; };
    const std::int64_t done = steps_in(folder / "metrics.jsonl").back();
    double seconds = 0;
    if (dice < 4) {
      ++tally.ranks;
      kill(ranks[random() % ranks.size()], dice == 0 ? SIGSTOP : SIGKILL);
      seconds = seconds_until(20, heals);
    } else if (dice < 9 || hurt == 0) {
      ++tally.machines;
      all.lose(hurt);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
      all.replace(folder, command, hurt);
      seconds = seconds_until(30, heals);
    } else {
      ++tally.silent;
      const int waits = count(all[0].error(), " is lost; the run waits");
      machine.signal(SIGSTOP);
      REQUIRE(within(15, [&] { return count(all[0].error(), " is lost; the run waits") > waits; }));
      machine.signal(SIGCONT);
      seconds = seconds_until(20, heals);
    }
    INFO(kind.name << ", seed " << seed << ", blow " << blow << ": " << all[witness].error());
    const std::string error = all[witness].error();
    const std::int64_t from =
        step_after(error.substr(error.rfind("the run heals (")), "start again after step ");
    CHECK(from >= 0);
    CHECK(done - from <= 2);
    tally.lost = std::max(tally.lost, done - from);
    tally.seconds = std::max(tally.seconds, seconds);
  }
  INFO(kind.name << ", seed " << seed);
  all_end_as(folder, all, expected);
  CHECK(tally.seconds < 10);
  CHECK(within(5, [&] { return std::ranges::includes(shared_before, shared_memory()); }));
  return tally;
}

}  // namespace

/// TESSERA_KILLS: how many; TESSERA_WRITE_HEALING_TABLE: the file that gets the table.
TEST_CASE("a hundred blows to machines", "[.long]") {
  const char* const wanted = std::getenv("TESSERA_KILLS");
  const int blows = wanted != nullptr ? std::atoi(wanted) : 100;
  const std::vector<std::pair<Kind, std::size_t>> kinds = {
      {mixed, 2}, {hybrid, 4}, {captured, 2}, {captured_pipeline, 2}, {of_machines(3), 3}};
  std::string table =
      "| layout | machines | ranks killed or stopped | machines lost | machines silent | repeated "
      "steps, most | seconds to a new start, most |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const auto& [kind, machines] : kinds) {
    const int each = blows / static_cast<int>(kinds.size());
    const Tally tally = hurt(steps(kind, 500 + 60 * each), machines, each, 7);
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f", tally.seconds);
    table += "| " + kind.name + " | " + std::to_string(machines) + " | " +
             std::to_string(tally.ranks) + " | " + std::to_string(tally.machines) + " | " +
             std::to_string(tally.silent) + " | " + std::to_string(tally.lost) + " | " + seconds +
             " |\n";
  }
  if (const char* const file = std::getenv("TESSERA_WRITE_HEALING_TABLE")) {
    std::ofstream(file) << table;
  }
}
