// What `tessera graph stats` counts in the captured step of every config is what an eager step
// executes: calls of each operator, collectives among them, and FLOPs.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.app.config;
import tessera.runs;

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

using Counts = std::map<std::string, std::int64_t>;

/// Of rank 0: a step that is taken as always, and the program of later ones before passes.
struct Measured {
  Account eager;
  std::string program;
};

Measured measured(runs::Run run) {
  run.config.graph.capture = true;
  run.config.graph.passes = {};
  Measured all;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    trainer.step();
    Account account;
    {
      const AccountScope scope(account);
      trainer.step();
    }
    while (trainer.program() == nullptr) {
      trainer.step();
    }
    if (rank == 0) {
      all = {.eager = account, .program = trainer.program_text()};
    }
  });
  return all;
}

/// A mode's step, which has no eager form: as the interpreter executes it.
Measured of_program(runs::Run run) {
  run.config.graph.passes = {};
  return {.eager = runs::try_step(run).account, .program = runs::capture_step(run).to_text()};
}

Counts calls_of(const Account& account) {
  Counts calls;
  for (const auto& [name, work] : account.operators) {
    calls[name] = work.calls;
  }
  return calls;
}

/// Calls of the operators that communicate.
std::int64_t collectives_in(const graph::ProgramStatistics& statistics) {
  std::int64_t calls = 0;
  for (const graph::CollectiveCount& count : statistics.collectives) {
    calls += count.calls;
  }
  return calls;
}

std::int64_t collectives_in(const Account& account) {
  std::int64_t calls = 0;
  for (const auto& [key, work] : account.collectives) {
    calls += work.calls;
  }
  return calls;
}

/// Where two counts differ, for a reader.
std::string differences(const Counts& eager, const Counts& captured) {
  std::string text;
  for (const Counts* side : {&eager, &captured}) {
    for (const auto& [name, count] : *side) {
      const auto other = (side == &eager ? captured : eager).find(name);
      if (other == (side == &eager ? captured : eager).end() || other->second != count) {
        text +=
            (side == &eager ? "eager " : "captured ") + name + " " + std::to_string(count) + "; ";
      }
    }
  }
  return text;
}

}  // namespace

TEST_CASE("the captured step of every config has the calls and FLOPs of the eager step") {
  use_shipped_plugins();
  for (const std::string& name : shipped_configs()) {
    INFO(name);
    const runs::Run run = small_run(
        name, {}, {"model.dim=64", "model.ffn_dim=96", "data.seq_len=16", "train.steps=40"});
    const Measured all = run.config.graph.mode.empty() ? measured(run) : of_program(run);
    const graph::ProgramStatistics statistics = graph::statistics_of(Program::parse(all.program));
    CHECK(differences(calls_of(all.eager),
                      Counts(statistics.calls.begin(), statistics.calls.end())) == "");
    CHECK(statistics.flops == all.eager.flops());
    CHECK(collectives_in(statistics) == collectives_in(all.eager));
  }
}
