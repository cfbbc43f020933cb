// The link between two machines is cut while they train.
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "catch.hpp"
#include "machines.hpp"
#include "skip.hpp"

using namespace faults;

namespace {

bool can_link(const Link& link) {
  if (!link.made()) {
    tessera::testing::skip("two networks cannot be made here (it takes root, and `ip`)");
  }
  return link.made();
}

}  // namespace

TEST_CASE("a link that is cut for a moment delays the run, and no machine is lost", "[.root]") {
  const Link link;
  if (!can_link(link)) {
    return;
  }
  const Kind kind = steps(mixed, 60);
  const RunFolder folder;
  const Words command = healing(kind);
  Machines machines(folder, {command, command}, &link);
  REQUIRE(trains(folder, 10));
  link.cut();
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const std::size_t then = steps_in(folder / "metrics.jsonl").size();
  CHECK(then < 60);
  link.mend();
  all_end_as(folder, machines, undisturbed(kind));
  CHECK(count(machines[0].error(), "the run heals (") == 0);
}

TEST_CASE("a machine whose link is cut is lost, and takes its place again when the link is there",
          "[.root]") {
  const Link link;
  if (!can_link(link)) {
    return;
  }
  for (const Kind& kind : {steps(mixed, 60), steps(captured_pipeline, 60)}) {
    const RunFolder folder;
    const Words command = healing(kind);
    Machines machines(folder, {command, command}, &link);
    REQUIRE(trains(folder, 10));
    link.cut();
    for (const std::size_t m : {0, 1}) {
      INFO(m);
      REQUIRE(within(20, [&] { return count(machines[m].error(), " is lost") == 1; }));
      CHECK(machines[m].ranks().size() <= 2);
    }
    link.mend();
    REQUIRE(heal(machines, {0, 1}, 1));
    CHECK(count(machines[0].error(), ", which is in memory") == 1);
    all_end_as(folder, machines, undisturbed(kind));
  }
}

TEST_CASE("a machine whose link is cut for good is replaced by another one", "[.root]") {
  const Link link;
  if (!can_link(link)) {
    return;
  }
  const Kind kind = steps(mixed, 60);
  const RunFolder folder;
  const Words command = healing(kind, {"train.heal_wait=20"});
  Machines machines(folder, {command, command}, &link);
  REQUIRE(trains(folder, 10));
  link.cut();
  REQUIRE(within(20, [&] { return count(machines[0].error(), "1 of 2 is lost") == 1; }));
  machines.lose(1);  // whoever is in charge switches it off
  link.mend();
  machines.replace(folder, command, 1);
  REQUIRE(heal(machines, {0, 1}, 1));
  all_end_as(folder, machines, undisturbed(kind));
}
