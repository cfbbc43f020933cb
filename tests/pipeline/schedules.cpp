// Schedules against closed forms, the orders of PyTorch's schedules, and going through them by
// brute force.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "generators.hpp"
#include "property.hpp"

import tessera.base;
import tessera.pipeline;

using namespace tessera;
using tessera::testing::error_of;
using namespace tessera::pipeline;

namespace {

const std::vector<PipelineSize> sizes = {
    {.ranks = 1, .micro_batches = 3}, {.ranks = 2, .micro_batches = 1},
    {.ranks = 2, .micro_batches = 4}, {.ranks = 3, .micro_batches = 5},
    {.ranks = 4, .micro_batches = 2}, {.ranks = 4, .micro_batches = 8},
    {.ranks = 8, .micro_batches = 16}};

/// The nearest size that the kind can have.
PipelineSize fitting(const ScheduleKind& kind, PipelineSize size) {
  if (kind.name == "interleaved") {
    size.micro_batches = (size.micro_batches + size.ranks - 1) / size.ranks * size.ranks;
  }
  size.stages_per_rank = std::max(size.stages_per_rank, kind.least_stages_per_rank);
  if (kind.most_stages_per_rank != 0) {
    size.stages_per_rank = std::min(size.stages_per_rank, kind.most_stages_per_rank);
  }
  return size;
}

/// Sizes that the kind can have.
std::vector<PipelineSize> sizes_of(const ScheduleKind& kind) {
  std::vector<PipelineSize> all;
  for (PipelineSize size : sizes) {
    for (const int stages : {1, 2, 3}) {
      size.stages_per_rank = stages;
      const PipelineSize fits = fitting(kind, size);
      if (fits.stages_per_rank == stages) {
        all.push_back(fits);
      }
    }
  }
  return all;
}

std::string in_words(std::string_view kind, const PipelineSize& size) {
  return fmt::format("{} {} x {}, {} micro-batches", kind, size.ranks, size.stages_per_rank,
                     size.micro_batches);
}

void each_schedule(const std::function<void(const Schedule&, const PipelineSize&)>& body) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (const PipelineSize& size : sizes_of(kind)) {
      INFO(in_words(kind.name, size));
      body(make_schedule(kind.name, size), size);
    }
  }
}

/// The computing actions of a rank as a text.
std::string computed(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& a : actions) {
    if (computes(a.work)) {
      text += fmt::format("{}{}{}.{}", text.empty() ? "" : " ", "FBIW"[static_cast<int>(a.work)],
                          a.stage, a.micro_batch);
    }
  }
  return text;
}

/// Runs the ranks in a random order, with mailboxes: whether all come to their end, with every
/// message read and every value there when it is used.
bool comes_to_an_end(const Schedule& s, std::mt19937& random) {
  std::vector<std::size_t> at(s.actions.size(), 0);
  std::multiset<std::tuple<int, int, int>>
      boxes;  // kind of value, the stage that gets it, micro-batch
  std::set<std::tuple<int, int, int, int>> on_rank;  // rank, kind of value, stage, micro-batch
  std::size_t idle = 0;
  while (idle < 64 * at.size()) {
    const auto r = static_cast<std::size_t>(random() % at.size());
    if (at[r] == s.actions[r].size()) {
      ++idle;
      continue;
    }
    const Action& a = s.actions[r][at[r]];
    const int rank = static_cast<int>(r);
    const auto has = [&](int kind, int stage) {
      return on_rank.contains({rank, kind, stage, a.micro_batch});
    };
    const auto put = [&](int kind, int stage) {
      on_rank.insert({rank, kind, stage, a.micro_batch});
    };
    // Kinds: 0 the input of a stage, 1 the gradient of its output, 2 its output, 3 its input's
    // gradient, 4 what its backward needs.
    bool done = true;
    const bool from_before = a.stage > 0 && s.crosses(a.stage - 1);
    if (a.work == Work::forward) {
      done = a.stage == 0 || (from_before ? has(0, a.stage) : has(2, a.stage - 1));
      if (done) {
        put(2, a.stage);
        put(4, a.stage);
      }
    } else if (a.work == Work::backward || a.work == Work::input_gradient) {
      done = has(4, a.stage) &&
             (s.is_last(a.stage) || (s.crosses(a.stage) ? has(1, a.stage) : has(3, a.stage + 1)));
      if (done) {
        put(3, a.stage);
      }
    } else if (a.work == Work::weight_gradient) {
      done = has(3, a.stage);
    } else if (a.work == Work::send_activation) {
      done = has(2, a.stage);
      boxes.insert({0, a.stage + 1, a.micro_batch});
    } else if (a.work == Work::send_gradient) {
      done = has(3, a.stage);
      boxes.insert({1, a.stage - 1, a.micro_batch});
    } else {
      const int kind = a.work == Work::receive_activation ? 0 : 1;
      const auto found = boxes.find({kind, a.stage, a.micro_batch});
      done = found != boxes.end();
      if (done) {
        boxes.erase(found);
        put(kind, a.stage);
      }
    }
    idle = done ? 0 : idle + 1;
    at[r] += done ? 1 : 0;
  }
  for (std::size_t r = 0; r < at.size(); ++r) {
    if (at[r] != s.actions[r].size()) {
      return false;
    }
  }
  return boxes.empty();
}

std::string refusal(const Schedule& schedule) {
  return error_of([&] { check(schedule, "s.txt"); });
}

}  // namespace

TEST_CASE("every kind of schedule can run, and its text is read again") {
  std::mt19937 random(7);
  each_schedule([&](const Schedule& schedule, const PipelineSize&) {
    CHECK_NOTHROW(check(schedule, ""));
    CHECK(comes_to_an_end(schedule, random));
    const Schedule again = parse_schedule(to_text(schedule), "s.txt");
    CHECK(to_text(again) == to_text(schedule));
    CHECK(again.actions == schedule.actions);
  });
}

TEST_CASE("schedules compute in the orders of PyTorch's") {
  std::ifstream file(TESSERA_PIPELINE_ORDERS);
  for (const nlohmann::json& stored : nlohmann::json::parse(file)) {
    const std::string kind = stored.at("kind");
    const PipelineSize size{.ranks = stored.at("ranks"),
                            .stages_per_rank = stored.at("stages_per_rank"),
                            .micro_batches = stored.at("micro_batches")};
    INFO(in_words(kind, size));
    const Schedule schedule = make_schedule(kind, size);
    if (kind == "zero_bubble_v") {
      // Ours places what is ready; PyTorch's pattern is no earlier by more than three halves.
      std::string text = fmt::format("micro_batches {}\nstages", size.micro_batches);
      for (const int rank : schedule.rank_of_stage) {
        text += fmt::format(" {}", rank);
      }
      for (int rank = 0; rank < size.ranks; ++rank) {
        text +=
            fmt::format("\nrank {}: {}", rank,
                        stored.at("actions").at(static_cast<std::size_t>(rank)).get<std::string>());
      }
      const Schedule theirs = parse_schedule(text, "PyTorch's");
      CHECK_NOTHROW(check(theirs, ""));
      CHECK(simulate(schedule).end <= simulate(theirs).end + 1.5);
      continue;
    }
    for (int rank = 0; rank < size.ranks; ++rank) {
      CHECK(computed(schedule.actions[static_cast<std::size_t>(rank)]) ==
            stored.at("actions").at(static_cast<std::size_t>(rank)).get<std::string>());
    }
  }
}

TEST_CASE("times, bubbles and what is kept are those of closed forms") {
  each_schedule([&](const Schedule& schedule, const PipelineSize& size) {
    const Simulation simulation = simulate(schedule);
    const double r = size.ranks;
    const double m = size.micro_batches;
    const double v = size.stages_per_rank;
    const auto end = Approx(simulation.end);
    const int most = *std::ranges::max_element(schedule.most_kept);
    if (schedule.name == "gpipe") {
      CHECK((3 * m + 3 * (r - 1) / v == end || (m < r && v > 1)));
      CHECK(most == size.micro_batches * size.stages_per_rank);
    } else if (schedule.name == "1f1b") {
      CHECK(3 * (m + r - 1) == end);
      for (int rank = 0; rank < size.ranks; ++rank) {
        CHECK(schedule.most_kept[static_cast<std::size_t>(rank)] ==
              std::min(size.ranks - rank, size.micro_batches));
      }
    } else if (schedule.name == "interleaved") {
      CHECK(3 * m + 3 * (r - 1) / v == end);
    } else if (schedule.name == "zero_bubble" && m >= r) {
      CHECK(3 * m + r - 1 == end);
      CHECK(most <= size.ranks);
    } else if (schedule.name == "zero_bubble_v") {
      CHECK(simulation.end >= 3 * m + (r - 1) / 2);  // the last rank waits for its first input
      CHECK(most <= 2 * size.ranks);
    }
    CHECK(1 - 3 * m / simulation.end == Approx(simulation.bubble()).margin(1e-12));
  });
}

TEST_CASE("transfers, stages of unequal cost and memory are in the times") {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 2});
  const Simulation simulation = simulate(
      schedule,
      {.stages = {{.forward = 2, .input_gradient = 2, .weight_gradient = 1, .kept_bytes = 10},
                  {.forward = 1, .input_gradient = 1, .weight_gradient = 1, .kept_bytes = 7}},
       .transfer = 0.5});
  // Rank 1: F at 2.5, B at 3.5 to 5.5; F of the second (there at 4.5) to 6.5, B to 8.5. Rank 0: the
  // first gradient at 6 to 9, the second (there at 9) to 12.
  CHECK(simulation.end == 12);
  CHECK(simulation.busy == std::vector<double>{10, 6});
  CHECK(simulation.kept_bytes == std::vector<double>{20, 7});
  CHECK(error_of([&] { simulate(schedule, {.stages = {{}}}); }).find("of other stages") !=
        std::string::npos);
}

TEST_CASE("a picture has a column for each unit of time") {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 2});
  CHECK(draw_text(schedule, simulate(schedule), 1) ==
        "rank 0   F0 F1 .  .  B0    .  B1\n"
        "rank 1   .  F0 B0    F1 B1    .  .\n");
}

TEST_CASE("what cannot run is refused with its place") {
  const auto refused = [](const std::string& ranks, const std::string& head = "stages 0 1") {
    const std::string text = "schedule own\nmicro_batches 2\n" + head + "\n" + ranks;
    return refusal(parse_schedule(text, "s.txt"));
  };
  const auto says = [](const std::string& part) { return Catch::Contains(part); };
  const std::string second = "\nrank 1: F1.0 B1.0 F1.1 B1.1";
  CHECK(refused("rank 0: F0.0 F0.1 B0.0 B0.1" + second) == "no error");
  CHECK(refused("rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1") ==
        "s.txt: pipeline schedule 'own': it never ends: these ranks wait for what nobody sends any "
        "more\nrank 0: receive gradient of stage 0, micro-batch 0, from rank 1\n"
        "rank 1: receive activation of stage 1, micro-batch 1, from rank 0");
  CHECK_THAT(refused("rank 0: F0.0 F0.1 B0.0" + second),
             says("rank 0: backward of stage 0, micro-batch 1 is missing"));
  CHECK_THAT(refused("rank 0: F0.0 F0.0 F0.1 B0.0 B0.1" + second), says("there a second time"));
  CHECK_THAT(refused("rank 0: F0.0 F0.1 B0.1 B0.0\nrank 1: F1.0 B1.0 F1.1 B1.1"),
             says("the micro-batches are not in order (expected micro-batch 0 before)"));
  CHECK_THAT(
      refused("rank 0: B0.0 F0.0 F0.1 B0.1", "stages 0"),
      says("rank 0: backward of stage 0, micro-batch 0: what it needs is not there by then"));
  CHECK_THAT(refused("rank 0: F0.0 I0.0 W0.0 F0.1 W0.1 I0.1", "stages 0"),
             says("weight gradient of stage 0, micro-batch 1: what it needs is not there"));
  CHECK(refused("rank 0: F0.0 F0.1 I0.0 W0.0 B0.1", "stages 0") == "no error");
  CHECK_THAT(refused("rank 0: F0.0 F0.1 I0.0 B0.1 W0.0", "stages 0"),
             says("backward of stage 0, micro-batch 1: the micro-batches are not in order"));
  CHECK_THAT(refused("rank 0: F0.0 F1.0 F0.1 B0.0 B0.1" + second),
             says("of stage 1, micro-batch 0: the stage is on rank 1"));
  CHECK_THAT(refused("rank 0: F0.0 F0.1 F0.2 B0.0 B0.1" + second),
             says("there is none (expected stages 0 to 1 and micro-batches 0 to 1)"));
  CHECK_THAT(refused("rank 0: F0.0 F0.1 B0.0 B0.1", "stages 0 1"),
             says("stage 1 is on a rank that has no actions (expected 0 to 0, got 1)"));
  CHECK_THAT(refused("rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1:", "stages 0"),
             says("rank 1 has no stage"));
  CHECK_THAT(refused("rank 0: <F0.0 F0.0 F0.1 B0.0 B0.1", "stages 0"),
             says("receive activation of stage 0, micro-batch 0: there is no other rank"));
  CHECK_THAT(
      refused("rank 0: F0.0 F0.1 B0.0 B0.1", "stages 0\nkept 1"),
      says("rank 0 keeps activations of too many micro-batches (expected at most 1, got 2)"));
}

TEST_CASE("changed schedules are refused, or come to an end") {
  std::mt19937 random(11);  // the order in which ranks run
  int refused = 0;
  int accepted = 0;
  const auto kinds = schedule_kinds();
  testing::property("changed schedule", 1000, [&] {
    const testing::ChangedSchedule c = *testing::changed_schedules(static_cast<int>(kinds.size()));
    const ScheduleKind& kind = kinds[static_cast<std::size_t>(c.kind)];
    const PipelineSize size = fitting(
        kind,
        {.ranks = c.ranks, .stages_per_rank = c.stages_per_rank, .micro_batches = c.micro_batches});
    Schedule schedule = make_schedule(kind.name, size);
    std::vector<Action>& actions = schedule.actions[c.rank];
    const auto place = static_cast<std::ptrdiff_t>(c.place % actions.size());
    const auto other = static_cast<std::ptrdiff_t>(c.other % actions.size());
    if (c.change == 0) {
      actions.erase(actions.begin() + place);
    } else if (c.change == 1) {
      std::iter_swap(actions.begin() + place, actions.begin() + other);
    } else {
      const Action repeated = *(actions.begin() + place);
      actions.insert(actions.begin() + other, repeated);
    }
    if (refusal(schedule) != "no error") {
      ++refused;
      return;
    }
    ++accepted;
    testing::check(c.change == 1, "accepted with something missing or twice\n" + to_text(schedule));
    testing::check(comes_to_an_end(schedule, random), "it never ends\n" + to_text(schedule));
  });
  CHECK(refused > 500);
  CHECK(accepted > 20);
}

TEST_CASE("errors of sizes, kinds and texts say what would be right") {
  const auto made = [](std::string_view kind, const PipelineSize& size) {
    return error_of([&] { make_schedule(kind, size); });
  };
  CHECK(made("1f2b", {}) ==
        "pipeline schedule: there is no '1f2b'; did you mean '1f1b'? (expected gpipe, 1f1b, "
        "interleaved, zero_bubble, zero_bubble_v)");
  CHECK(made("interleaved", {.ranks = 4, .stages_per_rank = 2, .micro_batches = 6}) ==
        "pipeline schedule interleaved: it cannot use this number of micro-batches (expected a "
        "multiple of the 4 ranks of its axis, got 6); change train.micro_batch or train.batch");
  CHECK(made("zero_bubble_v", {.ranks = 2, .stages_per_rank = 3, .micro_batches = 2}) ==
        "pipeline schedule zero_bubble_v: it cannot have this number of stages a rank (expected 2, "
        "got 3); choose interleaved");
  CHECK(made("gpipe", {.ranks = 2, .micro_batches = 0}) ==
        "pipeline schedule gpipe: a pipeline has no micro-batches (expected 1 or more, got 0)");
  const auto read = [](const std::string& text) {
    return error_of([&] { parse_schedule(text, "s.txt"); });
  };
  CHECK(read("micro_batches 2\nstages 0\nrank 0: F0.0 X0.1") ==
        "s.txt:3: schedule: 'X0.1' is no action (expected a kind (F, B, I, W, >F, <F, >B, <B), a "
        "stage, a dot and a micro-batch, as F0.3)");
  CHECK(read("micro_batches 2\nstages 0\nrank 1: F0.0") ==
        "s.txt:3: schedule: the ranks are not in order (expected rank 0:)");
  CHECK(read("micro_batches 2") == "s.txt: schedule: there is no line 'stages'");
  CHECK(read("micro_batches -2") == "s.txt:1: schedule: '-2' is no number (expected 0 to 1000000)");
  CHECK(read("micro_batches 2\nmicro_batches 2") ==
        "s.txt:2: schedule: 'micro_batches' is there a second time");
  CHECK(read("micro_batches 1\nstages 0\nrank 0: F7.0").find("there is no such stage") !=
        std::string::npos);
}
