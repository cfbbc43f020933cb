// The curve of a run with Float8 layers against that of its config without them.
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
import tessera.app.data;
import tessera.app.model;
import tessera.app.run;

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

constexpr int steps = 100;

std::vector<double> curve(const std::string& config, const std::vector<std::string>& overrides) {
  const Run run = small_run(config, overrides,
                            {"model.dim=64", "model.ffn_dim=96", "data.seq_len=32",
                             "train.steps=100", "optimizer.lr=3e-3"});
  std::vector<double> losses;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    Trainer trainer(run);
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
