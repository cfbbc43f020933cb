// Every config of configs/, with updates that are left to the next step: the bits of eager steps,
// and where the updates are made.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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

constexpr std::size_t steps = 8;

runs::Run run_of(const std::string& name, const std::vector<std::string>& overrides) {
  return small_run(name, overrides,
                   {"model.dim=64", "model.ffn_dim=96", "data.seq_len=16", "train.steps=40"});
}

std::map<std::string, std::vector<double>> parameters_of(runs::Trainer& trainer) {
  std::map<std::string, std::vector<double>> all;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    all[name] = to_doubles(parameter->value.local());
  }
  return all;
}

void leaves(const std::string& name, const std::vector<std::string>& overrides,
            const std::string& executor = "planned", const std::string& budget = "") {
  std::string what = name;
  for (const std::string& one : overrides) {
    what += " " + one;
  }
  INFO(what);
  runs::Run run = run_of(name, overrides);
  runs::Run captured = run;
  captured.config.graph.capture = true;
  captured.config.graph.across_steps = true;
  captured.config.graph.executor = executor;
  captured.config.graph.memory_budget = budget;
  REQUIRE_NOTHROW(on_ranks(static_cast<int>(run.config.ranks()), [&](int) {
    runs::Trainer eager(run);
    std::vector<StepResult> expected;
    for (std::size_t i = 0; i < steps; ++i) {
      expected.push_back(eager.step());
    }
    runs::Trainer trainer(captured);
    trainer.capture_ahead();
    for (std::size_t i = 0; i < steps; ++i) {
      const StepResult got = trainer.step(i == 3);
      check(got.loss == expected[i].loss && got.grad_norm == expected[i].grad_norm,
            "step " + std::to_string(i + 1) + ": loss " + std::to_string(got.loss) +
                " instead of " + std::to_string(expected[i].loss));
    }
    const ReplayCounts& counts = trainer.replays();
    check(counts.left == steps - 1, std::to_string(counts.left) + " left: " + counts.not_left);
    check(parameters_of(trainer) == parameters_of(eager), "parameters");
  }));
}

}  // namespace

TEST_CASE("steps of every config leave their updates to the next one, bit by bit", "[unverified]") {
  parallel_test::use_shipped_plugins();
  for (const std::string& name : parallel_test::shipped_configs()) {
    leaves(name, {});
  }
  for (const char* name : {"fully_sharded.toml", "fsdp_tensor.toml", "one_rank.toml"}) {
    leaves(name, {"train.micro_batch=1", "model.dropout=0.1"});
    leaves(name, {"train.precision=bf16", "train.freeze=[model.embed_tokens.*]"}, "compiled");
  }
  for (const char* name : {"fully_sharded.toml", "qlora.toml", "float8.toml", "hybrid.toml"}) {
    leaves(name, {"graph.passes=[]"}, "interpreter");
  }
  leaves("lora.toml", {"train.precision=bf16"});
  leaves("fully_sharded.toml", {"model.tie_embeddings=true"});
  leaves("fully_sharded.toml", {"model.dropout=0.1"}, "planned", "1800KiB");
}

TEST_CASE("first gathers are under way while later layers are updated") {
  parallel_test::use_shipped_plugins();
  for (const char* name : {"fully_sharded.toml", "hybrid.toml", "fsdp_tensor.toml"}) {
    INFO(name);
    const Program middle = runs::capture_part(
        run_of(name, {"graph.capture=true", "graph.across_steps=true"}), 0, "middle");
    const std::vector<Instruction>& all = middle.sections[0].instructions;
    std::map<TensorIndex, std::size_t> updated;  // parameters
    std::map<TensorIndex, std::size_t> gathered;
    for (std::size_t at = 0; at < all.size(); ++at) {
      const Instruction& i = all[at];
      for (std::size_t k = 0; i.op != nullptr && k < i.in.size(); ++k) {
        const bool writes = i.writes(k);
        if (i.op->communicates == collective::CallKind::all_gather && !writes) {
          gathered.try_emplace(i.in[k], at);
        } else if (i.op->communicates == Communicates::none && writes) {
          updated[i.in[k]] = at;
        }
      }
    }
    std::size_t first_gather = all.size();
    std::size_t last_update = 0;
    for (const auto& [own, input] : middle.inputs) {
      if (input.role == Role::parameter && gathered.contains(input.tensor)) {
        INFO(own);
        REQUIRE(updated.contains(input.tensor));
        CHECK(updated[input.tensor] < gathered[input.tensor]);
        first_gather = std::min(first_gather, gathered[input.tensor]);
        last_update = std::max(last_update, updated[input.tensor]);
      }
    }
    CHECK(first_gather < last_update);
    CHECK(middle.sections.back().instructions.empty());
  }
}
