// Schedules that count tokens: the rate of each step, in eager and in replayed steps, and after a
// checkpoint.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.parallel;

#include "layouts.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using parallel_test::check;
using parallel_test::error_of;
using parallel_test::fsdp;
using parallel_test::Net;
using parallel_test::net_tokens;
using parallel_test::Planned;
using train_test::Folder;
using train_test::Layouts;
using train_test::on_layout;
using train_test::same_state;

namespace {

constexpr std::int64_t rows = 8;
constexpr std::int64_t row_tokens = 3;
constexpr int steps = 9;

const optim::Schedule by_tokens{.kind = optim::ScheduleKind::cosine,
                                .lr = 0.05,
                                .unit = optim::ScheduleUnit::tokens,
                                .warmup = 60,
                                .end = 260,
                                .min_ratio = 0.1};

/// Tokens of step `step`: some of the 24 that it has are padding, which this program leaves out.
std::int64_t tokens_of(std::int64_t step) { return rows * row_tokens - 5 * (step % 3); }

double expected_rate(std::int64_t step) {
  std::int64_t before = 0;
  for (std::int64_t s = 0; s < step; ++s) {
    before += tokens_of(s);
  }
  return by_tokens.at(before, tokens_of(step));
}

struct Run {
  Run(const DeviceMesh& mesh, const Layouts& layout, const optim::Schedule& schedule = by_tokens)
      : net(std::make_shared<Net>(), mesh, layout.styles),
        training(*net.model, net.plan, optim::adamw(nn::all_parameters(*net.model)), schedule) {}

  StepResult step(std::int64_t micro_rows = 0) { return step(micro_rows, tokens_of(done())); }
  StepResult step(std::int64_t micro_rows, std::int64_t tokens) {
    return training.step(
        {.rows = rows, .micro_rows = micro_rows, .weight = rows * row_tokens, .tokens = tokens},
        StepFunctions{.rows =
                          [&](const BatchPart& m) {
                            const Tensor all = net_tokens(rows, static_cast<int>(m.step));
                            return Tensors{ops::contiguous(ops::narrow(all, 0, m.first, m.rows))};
                          },
                      .loss_sum =
                          [this, micro_rows](const Tensors& tensors) {
                            const std::int64_t all =
                                micro_rows == 0 ? rows : micro_rows * net.plan.batch_parts();
                            const Tensor tokens = from_local(tensors[0], net.plan.batch_layout(),
                                                             Dims{all, row_tokens});
                            return ops::sum(ops::square((*net.model)(tokens)));
                          }});
  }
  std::int64_t done() const { return training.done(); }

  Planned net;
  Training training;
};

}  // namespace

TEST_CASE("rates follow the tokens of all steps before, in every layout, replayed or not") {
  for (const Layouts& layout : train_test::layouts()) {
    for (const std::int64_t micro_rows : {0, 2}) {
      for (const bool replay : {false, true}) {
        INFO(layout.name << ", micro-batches of " << micro_rows << (replay ? ", replayed" : ""));
        REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
          Run run(mesh, layout);
          run.training.captured().set_enabled(replay);
          std::int64_t tokens = 0;
          for (int i = 0; i < steps; ++i) {
            const double rate = run.step(micro_rows).lr;
            check(rate == expected_rate(i), "the rate of step " + std::to_string(i));
            tokens += tokens_of(i);
            check(run.training.tokens() == tokens, "tokens are counted");
          }
          check(run.training.captured().counts().replayed == (replay ? steps - 2 : 0),
                "steps are replayed");
        }));
      }
    }
  }
}

TEST_CASE("the count of tokens is saved: a run continues bit by bit, replayed or not") {
  const Layouts layout = train_test::layout_named("fully sharded");
  for (const bool replay : {false, true}) {
    const Folder folder;
    REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
      Run whole(mesh, layout);
      whole.training.captured().set_enabled(replay);
      for (int i = 0; i < steps; ++i) {
        if (i == 5) {
          whole.training.checkpoints().save(folder / "run");
        }
        whole.step();
      }
      Run resumed(mesh, layout);
      resumed.step(0, 1000);  // what it did before counts no more
      resumed.training.checkpoints().load(folder / "run");
      resumed.training.captured().set_enabled(replay);
      for (int i = 5; i < steps; ++i) {
        check(resumed.step().lr == expected_rate(i), "the rate continues");
      }
      same_state(resumed.training, whole.training, "resumed");
    }));
  }
}

TEST_CASE("a schedule by tokens needs the number of tokens, and one by steps does not") {
  const Layouts layout = train_test::layout_named("fully sharded");
  REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
    Run run(mesh, layout);
    const std::string none = error_of([&] { run.step(0, 0); });
    check(none ==
              "training: the schedule counts tokens, and a step has none (expected at least 1, got "
              "0); set StepBatch::tokens",
          none);
    check(run.done() == 0 && run.training.tokens() == 0, "no step was counted");
    optim::Schedule by_steps = by_tokens;
    by_steps.unit = optim::ScheduleUnit::steps;
    Run other(mesh, layout, by_steps);
    check(other.step(0, 0).lr == by_steps.at(0), "the first rate");
    check(other.step(0, 7).lr == by_steps.at(1), "the second rate");
    const std::string negative = error_of([&] { other.step(0, -1); });
    check(negative.find("negative (expected at least 0, got -1)") != std::string::npos, negative);
    by_steps.end = 3;
    const std::string bad = error_of([&] { const Run refused(mesh, layout, by_steps); });
    check(bad.find("schedule: it ends before its warmup is over") != std::string::npos, bad);
  }));
}
