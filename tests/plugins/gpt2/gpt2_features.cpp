// GPT-2 with what the styles of fully sharded training offer: near its plain curve, and the same
// bits captured.
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

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

using Texts = std::vector<std::string>;
using Losses = std::vector<double>;

constexpr std::size_t steps = 8;

const std::string linear = R"(on=["transformer.h.*.attn.*_proj","transformer.h.*.mlp.c_*"])";
const std::string fsdp = R"({style="FSDP",axis="shard",on=["transformer.h.*","."]})";

Texts sharded(const std::string& entries) {
  return {R"(mesh.axes=["shard"])", "mesh.shape=[2]", "parallel=[" + entries + fsdp + "]"};
}

Losses losses_of(Texts overrides, bool captured) {
  overrides.emplace_back("optimizer.warmup=1");
  const runs::Run run =
      small_run("gpt2.toml", overrides, {"model.dim=64", "data.seq_len=16", "train.steps=40"});
  Losses losses;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    if (captured) {
      trainer.capture_ahead();
    }
    for (std::size_t i = 0; i < steps; ++i) {
      const StepResult result = trainer.step();
      if (rank == 0) {
        losses.push_back(result.loss);
      }
    }
    check(trainer.replays().replayed == (captured ? static_cast<std::int64_t>(steps) : 0),
          "all steps are replayed");
  });
  return losses;
}

}  // namespace

TEST_CASE("GPT-2 trains with every extension of fully sharded training, captured and eager") {
  use_shipped_plugins();
  const Losses plain = losses_of(sharded(""), false);
  CHECK(plain.back() < plain.front() - 0.3);
  struct Case {
    const char* name;
    Texts overrides;
    double tolerance;  // of each loss, against the plain curve; below 0: only the first is near
  };
  Texts hybrid = {
      R"(mesh.axes=["replicate","shard"])", "mesh.shape=[2,2]",
      R"(parallel=[{style="FSDP",axis=["replicate","shard"],on=["transformer.h.*","."]}])"};
  Texts bf16 = sharded("");
  bf16.emplace_back(R"(train.precision="bf16")");
  Texts checkpointed = sharded("");
  checkpointed.emplace_back("train.activation_checkpointing=true");
  checkpointed.emplace_back("train.micro_batch=2");
  const std::vector<Case> cases = {
      {"hybrid", hybrid, 1e-5},
      {"bf16", bf16, 2e-2},
      {"recomputed, in micro-batches", checkpointed, 1e-5},
      {"offload", sharded(R"({style="Offload",on=["."],options={to="memory"}},)"), 0},
      {"float8", sharded("{style=\"Float8\"," + linear + ",options={all_gather=true}},"), 5e-2},
      {"LoRA", sharded("{style=\"LoRA\"," + linear + ",options={rank=4}},"), -1e-6},
      {"QLoRA", sharded("{style=\"QLoRA\"," + linear + ",options={rank=4,base=\"nf4\"}},"), -5e-2}};
  for (const Case& one : cases) {
    INFO(one.name);
    const Losses eager = losses_of(one.overrides, false);
    CHECK(losses_of(one.overrides, true) == eager);
    CHECK(eager.back() < eager.front());
    for (std::size_t i = 0; i < (one.tolerance < 0 ? 1 : steps); ++i) {
      INFO("step " << i + 1 << ": " << eager[i] << " and " << plain[i]);
      CHECK(std::abs(eager[i] - plain[i]) <= std::abs(one.tolerance) * plain[i]);
    }
  }
}
