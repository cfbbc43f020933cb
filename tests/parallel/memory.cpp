// The memory that the plan of a run announces is the memory that its ranks use.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "config/config.hpp"
#include "data/dataset.hpp"
#include "llama_config.hpp"
#include "model_shape.hpp"

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"
#include "training/setup.hpp"
#include "training/trainer.hpp"
#include "training/trial.hpp"

using namespace tessera;
using namespace tessera::app;
using parallel_test::on_ranks;

namespace {

Run run_of(const std::string& name, std::vector<std::string> overrides) {
  for (const char* small : {"model.dim=128", "model.layers=2", "model.ffn_dim=352",
                            "data.seq_len=64", "data.validation=0.0", "train.batch=8",
                            "data.text=[\"" TESSERA_SOURCE_FOLDER "/docs/architecture.md\"]"}) {
    overrides.emplace_back(small);
  }
  Run run;
  run.config = load_config(std::string(TESSERA_SOURCE_FOLDER "/configs/") + name, overrides);
  run.shape = model_shape(run.config, 256);
  run.data = std::make_shared<const Dataset>(run.config, run.shape.vocab);
  return run;
}

MemoryStatistics planned(const Run& run) {
  const auto model = make_model(run.shape, run.config);
  const parallel::ParallelPlan plan(*model, make_mesh(run.config), style_entries(run.config),
                                    plugin::host());
  return try_step(*model, plan, run.config).memory;
}

/// Rank 0's, after three steps.
MemoryStatistics measured(const Run& run) {
  MemoryStatistics memory;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    const MemoryStatistics before = memory_statistics();
    Trainer trainer(run);
    for (int step = 0; step < 3; ++step) {
      trainer.step();
    }
    if (rank == 0) {
      memory = memory_statistics();
      parallel_test::check(before.total == 0, "nothing was booked before the run");
    }
  });
  return memory;
}

void agree(const std::string& name, const std::vector<std::string>& overrides) {
  const Run run = run_of(name, overrides);
  const MemoryStatistics plan = planned(run);
  const MemoryStatistics use = measured(run);
  std::string text = name;
  for (const std::string& one : overrides) {
    text += " " + one;
  }
  INFO(text << "\nplanned  " << memory_text(plan) << "\nmeasured " << memory_text(use));
  // In percent. Operators also use temporary memory, which the trial does not see.
  const std::array<int, memory_category_count> tolerance = {5, 5, 5, 20, 10, 0};
  for (int i = 0; i < memory_category_count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto category = static_cast<MemoryCategory>(i);
    INFO(name_of(category));
    if (category != MemoryCategory::other) {
      CHECK(std::abs(plan.peak[at] - use.peak[at]) <=
            tolerance[at] * use.peak[at] / 100 + (16 << 10));
    }
  }
  CHECK(std::abs(plan.total_peak - use.total_peak) <= use.total_peak * 15 / 100);
}

}  // namespace

TEST_CASE("the plan announces the memory that a run uses, by category") {
  plugin::configure_host(
      {.paths = {TESSERA_SHIPPED_PLUGINS}, .environment = false, .standard_places = false});
  for (const char* name : {"one_rank.toml", "replicated.toml", "fully_sharded.toml",
                           "tensor_parallel.toml", "fsdp_tensor.toml", "hybrid.toml"}) {
    agree(name, {});
  }
  for (const char* name : {"one_rank.toml", "fully_sharded.toml"}) {
    agree(name, {"train.activation_checkpointing=true"});
    agree(name, {"train.micro_batch=2", "model.dropout=0.1"});
    agree(name, {"train.micro_batch=1"});
    agree(name, {"train.freeze=[model.embed_tokens.*]"});
    agree(name, {"optimizer.name=sgd", "optimizer.lr=0.01"});
    agree(name, {"optimizer.name=sgd", "optimizer.lr=0.01", "optimizer.options.momentum=0.9"});
  }
  for (const char* name : {"replicated.toml", "fsdp_tensor.toml", "hybrid.toml"}) {
    agree(name, {"train.micro_batch=1"});
  }
}
