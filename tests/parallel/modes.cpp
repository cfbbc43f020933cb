// The modes of data parallelism in the trainer: the numbers of the styles that do the same, of one
// rank, of runs that continue each other, and what the table says of them.
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

using Overrides = std::vector<std::string>;

runs::Run run_of(const std::string& name, Overrides overrides) {
  for (const char* one : {"data.validation=0.2", "data.validation_windows=16", "train.steps=20"}) {
    overrides.emplace_back(one);
  }
  runs::Run run =
      small_run(name, overrides,
                {"model.dim=64", "model.ffn_dim=96", "data.seq_len=16", "optimizer.warmup=2"});
  run.config.data.validation = 0.2;
  run.task = runs::open_language_task(run.config);
  return run;
}

/// The config's run by a mode instead of its styles.
runs::Run by_mode(const std::string& name, const std::string& mode, Overrides overrides = {}) {
  overrides.emplace_back("graph.capture=true");
  runs::Run run = run_of(name, overrides);
  run.config.parallel.clear();
  run.config.graph.mode = mode;
  return run;
}

struct Taken {
  std::vector<double> losses;
  std::vector<double> norms;
  double validation = 0;
  std::int64_t replayed = 0;
};

/// `from`: a checkpoint to continue; `to`: a folder to save in, after `steps`.
Taken taken(const runs::Run& wanted, int steps, const std::string& from = "",
            const std::string& to = "") {
  runs::Run run = wanted;
  run.config.checkpoint.folder = to;
  Taken all;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    if (!from.empty()) {
      trainer.resume(from);
    }
    Taken mine;
    for (int step = 0; step < steps; ++step) {
      const StepResult result = trainer.step();
      mine.losses.push_back(result.loss);
      mine.norms.push_back(result.grad_norm);
    }
    mine.validation = trainer.validate().value_or(runs::Validation()).loss;
    mine.replayed = trainer.replays().replayed;
    if (!to.empty()) {
      trainer.checkpoints([](const std::string&) {}).after_step(true);
    }
    if (rank == 0) {
      all = mine;
    }
  });
  return all;
}

bool near(double got, double expected, double tolerance) {
  return std::abs(got - expected) <= tolerance * (1 + std::abs(expected));
}

/// The same curve within rounding, or, where sums have the same order, the same bits.
void alike(const Taken& got, const Taken& expected, double tolerance) {
  REQUIRE(got.losses.size() == expected.losses.size());
  if (tolerance == 0) {
    CHECK(got.losses == expected.losses);
    CHECK(got.norms == expected.norms);
  }
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    CHECK(near(got.losses[i], expected.losses[i], tolerance));
    CHECK(near(got.norms[i], expected.norms[i], 10 * tolerance + 1e-12));
  }
  CHECK(near(got.validation, expected.validation, tolerance + 1e-6));
}

std::string folder_of(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("tessera-modes-" + std::to_string(::getpid()) + "-" + name);
  std::filesystem::remove_all(folder);
  return folder.string();
}

constexpr double rounding = 2e-5;

}  // namespace

TEST_CASE("each mode has the loss curve and validation of one rank, on any mesh") {
  use_shipped_plugins();
  const Taken one = taken(run_of("one_rank.toml", {}), 6);
  for (const char* mode : {"expand", "replicate", "fully_shard", "default"}) {
    for (const char* mesh : {"[2]", "[4]"}) {
      INFO(mode << " on " << mesh);
      const Taken got =
          taken(by_mode("replicated.toml", mode, {std::string("mesh.shape=") + mesh}), 6);
      alike(got, one, rounding);
      CHECK(got.replayed == 6);
    }
    INFO(mode << " on a mesh of two axes");
    alike(taken(by_mode("hybrid.toml", mode), 6), one, rounding);
  }
}

TEST_CASE("modes have the bits of the styles that place alike, and a second run has them again") {
  use_shipped_plugins();
  const std::vector<std::pair<const char*, const char*>> alike_styles = {
      {"replicated.toml", "replicate"},
      {"fully_sharded.toml", "fully_shard"},
      {"hybrid.toml", "fully_shard"}};
  const std::vector<Overrides> variants = {
      {},
      {"model.dropout=0.1"},
      {"model.tie_embeddings=true"},
      {"train.precision=bf16"},
      {"train.freeze=[model.embed_tokens.*]"},
      {"train.activation_checkpointing=true", "model.dropout=0.1"},
      {"graph.passes=[]"}};
  for (const auto& [name, mode] : alike_styles) {
    for (const Overrides& variant : variants) {
      INFO(name << " " << (variant.empty() ? "" : variant.front()));
      const Taken by = taken(by_mode(name, mode, variant), 4);
      alike(by, taken(run_of(name, variant), 4), 0);
      alike(by, taken(by_mode(name, mode, variant), 4), 0);
    }
  }
}

TEST_CASE("micro-batches of a mode have the rows and random numbers of the styles'") {
  use_shipped_plugins();
  for (const auto& [name, mode] : std::map<std::string, std::string>{
           {"fully_sharded.toml", "default"}, {"hybrid.toml", "fully_shard"}}) {
    const Overrides small = {"train.micro_batch=1", "model.dropout=0.1"};
    alike(taken(by_mode(name, mode, small), 4), taken(run_of(name, small), 4), rounding);
    const Overrides recomputed = {"train.micro_batch=2", "model.dropout=0.1",
                                  "train.activation_checkpointing=true"};
    alike(taken(by_mode(name, mode, recomputed), 4), taken(run_of(name, recomputed), 4), rounding);
  }
}

TEST_CASE("modes take other models, optimizers, executors and budgets") {
  use_shipped_plugins();
  const auto same = [](const std::string& name, const Overrides& overrides,
                       const Overrides& only_mode = {}) {
    INFO(name << " " << (overrides.empty() ? only_mode.front() : overrides.front()));
    Overrides all = overrides;
    all.insert(all.end(), only_mode.begin(), only_mode.end());
    alike(taken(by_mode(name, "fully_shard", all), 4), taken(run_of(name, overrides), 4), rounding);
  };
  same("gpt2.toml", {"mesh.shape=[2, 1]"});
  for (const char* optimizer : {"sgd", "lion", "muon", "adafactor"}) {
    same("fully_sharded.toml", {std::string("optimizer.name=") + optimizer});
  }
  same("fully_sharded.toml", {"train.precision=f16", "train.loss_scaling=dynamic"});
  same("fully_sharded.toml", {}, {"graph.executor=compiled"});
  same("fully_sharded.toml", {}, {"graph.executor=interpreter"});
  same("fully_sharded.toml", {}, {"graph.memory_budget=1600KiB"});
  same("fully_sharded.toml", {},
       {R"(graph.passes=["views", "common", "dead", "lifetimes", "keep_gathers", "buckets"])"});
}

TEST_CASE("runs with a mode and with styles continue each other, bit by bit") {
  use_shipped_plugins();
  const std::vector<runs::Run> runs = {
      by_mode("fully_sharded.toml", "fully_shard"), run_of("fully_sharded.toml", {}),
      by_mode("replicated.toml", "replicate"), run_of("one_rank.toml", {})};
  for (std::size_t saved = 0; saved < 3; ++saved) {
    const std::string folder = folder_of(std::to_string(saved));
    taken(runs[saved], 3, "", folder);
    const std::string checkpoint = latest_checkpoint(folder).value();
    for (std::size_t loaded = 0; loaded < runs.size(); ++loaded) {
      INFO("saved by " << saved << ", continued by " << loaded);
      const Taken whole = taken(runs[loaded], 5);
      const Taken rest = taken(runs[loaded], 2, checkpoint);
      // The first three steps have the same bits on two ranks, sharded or not.
      const double tolerance = loaded < 3 ? 0 : rounding;
      const Taken expected = {{whole.losses.begin() + 3, whole.losses.end()},
                              {whole.norms.begin() + 3, whole.norms.end()},
                              whole.validation};
      alike(rest, expected, tolerance);
    }
    std::filesystem::remove_all(folder);
  }
}

TEST_CASE("the validation of a mode is that of the same parameters without one") {
  use_shipped_plugins();
  const std::string folder = folder_of("validated");
  const runs::Run run = by_mode("fully_sharded.toml", "default", {"train.micro_batch=2"});
  const double placed = taken(run, 3, "", folder).validation;
  const std::string checkpoint = latest_checkpoint(folder).value();
  for (const runs::Run& other : {run_of("one_rank.toml", {}), run_of("replicated.toml", {})}) {
    CHECK(near(placed, taken(other, 0, checkpoint).validation, 1e-6));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("the plan of a mode says what is sharded, moved and needed") {
  use_shipped_plugins();
  runs::Run run = by_mode("fully_sharded.toml", "fully_shard");
  const runs::Facts facts = runs::facts_of(run);
  std::string rows;
  for (const std::vector<std::string>& row : app::fact_rows(run, facts)) {
    rows += row[0] + ": " + row[1] + "\n";
  }
  INFO(rows);
  CHECK(contains(rows, "mode: fully_shard: 21 parameters are sharded, 0 replicated"));
  CHECK(contains(rows, "replayed from the first step on"));
  // Half of each parameter comes in forward and again in backward; half of each gradient's terms.
  std::int64_t bytes = 0;
  for (const auto& [name, parameter] :
       nn::named_parameters(*runs::training_model(*run.task, run.config))) {
    bytes += parameter->value.numel() * 4;
  }
  const Account& account = facts.trial.account;
  const std::int64_t gathered = account.collectives.at({"shard", "all_gather"}).bytes;
  // The embedding's backward does not need the table; the other way round, all are gathered twice.
  CHECK(gathered <= bytes);
  CHECK(gathered >= bytes * 3 / 4);
  CHECK(account.collectives.at({"shard", "reduce_scatter"}).bytes == bytes / 2);
  CHECK(account.model_flops == runs::try_step(run_of("one_rank.toml", {})).account.model_flops);
  run.config.graph.executor = "interpreter";
  const auto snapshot = account.memory.peak[static_cast<std::size_t>(MemoryCategory::snapshot)];
  CHECK(snapshot > 0);
  CHECK(account.memory.total_peak == graph::statistics_of(runs::capture_step(run)).peak + snapshot);
}

TEST_CASE("what a mode cannot place is refused before the ranks start") {
  use_shipped_plugins();
  runs::Run odd = by_mode("replicated.toml", "replicate", {"mesh.shape=[4]"});
  odd.config.train.batch = 6;
  CHECK(contains(error_of([&] { runs::facts_of(odd); }),
                 "train.batch: 6 sequences cannot be divided equally over the 4 ranks"));
  runs::Run run = by_mode("fully_sharded.toml", "fully_shard");
  on_ranks(2, [&](int) {
    runs::Trainer trainer(run);
    trainer.step();
    for (const nn::ParameterPointer& parameter : nn::all_parameters(trainer.model())) {
      parameter->value.set_requires_grad(false);
      break;
    }
    const std::string error = error_of([&] { trainer.step(); });
    check(contains(error, "this step has no program (other parameters are frozen") &&
              contains(error, "with a mode, all steps are of one kind"),
          "a step of another kind: " + error);
  });
}
