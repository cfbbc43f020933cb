// The curves of runs with Float8 layers, and of runs with parameters in bf16, against those of
// their configs without them.
#include <cmath>
#include <cstddef>
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
import tessera.app.run;

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

constexpr int steps = 100;

std::vector<double> curve(const std::string& config, const std::vector<std::string>& overrides) {
  const runs::Run run = small_run(config, overrides,
                                  {"model.dim=64", "model.ffn_dim=96", "data.seq_len=32",
                                   "train.steps=100", "optimizer.lr=3e-3"});
  std::vector<double> losses;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    for (int step = 0; step < steps; ++step) {
      const double loss = trainer.step().loss;
      if (rank == 0) {
        losses.push_back(loss);
      }
    }
  });
  return losses;
}

/// The mean of the last ten.
double end_of(const std::vector<double>& losses) {
  double sum = 0;
  for (std::size_t i = losses.size() - 10; i < losses.size(); ++i) {
    sum += losses[i];
  }
  return sum / 10;
}

}  // namespace

TEST_CASE("Float8: a curve stays within 1% of that of bf16") {
  const std::vector<double> expected = curve("bf16.toml", {});
  const std::vector<double> found = curve("float8.toml", {});
  REQUIRE(found.size() == steps);
  CHECK(expected[0] - end_of(expected) > 2);  // it learns
  CHECK(std::abs(end_of(found) / end_of(expected) - 1) < 0.01);
  CHECK(found != expected);
  const std::vector<double> again =
      curve("float8.toml", {"train.activation_checkpointing=true", "train.micro_batch=2"});
  CHECK(std::abs(end_of(again) / end_of(expected) - 1) < 0.01);
}

TEST_CASE("parameters in bf16: a curve stays within 1% of that of f32") {
  const std::vector<double> expected = curve("fully_sharded.toml", {});
  const std::vector<std::string> stored = {"train.parameters=bf16", "train.precision=bf16"};
  const std::vector<double> found = curve("fully_sharded.toml", stored);
  REQUIRE(found.size() == steps);
  CHECK(expected[0] - end_of(expected) > 2);  // it learns
  CHECK(std::abs(end_of(found) / end_of(expected) - 1) < 0.01);
}

TEST_CASE(
    "parameters in bf16: the plan says what a parameter takes, and refuses other optimizers") {
  use_shipped_plugins();
  const auto planned = [](const std::vector<std::string>& overrides) {
    const runs::Run run =
        small_run("fsdp_tensor.toml", overrides, {"model.dim=64", "model.ffn_dim=96"});
    for (const auto& row : app::fact_rows(run, runs::facts_of(run))) {
      if (row[0] == "stored") {
        return row[1];
      }
    }
    return std::string("not said");
  };
  CHECK(planned({}) ==
        "16 bytes for each trained parameter: itself 4, its gradient 4, the "
        "optimizer's state 8");
  const std::string stored = "train.parameters=bf16";
  const std::string narrow = "train.precision=bf16";
  CHECK(planned({stored, narrow}) ==
        "8 bytes for each trained parameter: itself 2, its gradient 2, the optimizer's state 4");
  const auto refused = [&](const std::string& override) {
    return error_of([&] { planned({stored, narrow, override}); });
  };
  for (const std::string name : {"lion", "sgd", "muon"}) {
    CHECK(contains(refused("optimizer.name=" + name),
                   name + " does not update parameters that are stored in bf16 (expected adamw"));
  }
  CHECK(contains(refused("optimizer.options={state_bits=8}"), "adamw does not update parameters"));
  CHECK(contains(refused("optimizer.groups=[{on=['**.norm.weight'],name='adam'}]"),
                 "adam does not update parameters that are stored in bf16"));
}
