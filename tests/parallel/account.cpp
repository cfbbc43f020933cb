// What the plan of a run announces is what its ranks do: FLOPs, communication and memory.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
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

#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

runs::Run run_of(const std::string& name, const std::vector<std::string>& overrides) {
  runs::Run run =
      small_run(name, overrides, {"model.dim=128", "model.ffn_dim=352", "data.seq_len=64"});
  run.config.checkpoint.folder =
      (std::filesystem::temp_directory_path() / ("tessera-account-" + std::to_string(::getpid())))
          .string();
  return run;
}

/// Rank 0's third step; its memory is that of all three.
Account measured(const runs::Run& run) {
  Account account;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    ops::set_threads(runs::threads_of_rank(run.config));
    const MemoryStatistics before = memory_statistics();
    runs::Trainer trainer(run);
    trainer.step();
    trainer.step();
    RunCheckpoints checkpoints = trainer.checkpoints({});
    checkpoints.after_step(true);  // a save in the background keeps its copy
    Account mine;
    {
      const AccountScope scope(mine);
      trainer.step();
    }
    if (rank == 0) {
      account = mine;
      parallel_test::check(before.total == 0, "nothing was booked before the run");
    }
  });
  return account;
}

/// "2 all_gather on 'shard', 64 bytes; ..."
std::string collectives_of(const Account& account) {
  std::string text;
  for (const auto& [key, work] : account.collectives) {
    text += std::to_string(work.calls) + " " + key.second + " on '" + key.first + "', " +
            std::to_string(work.bytes) + " bytes; ";
  }
  return text;
}

void agree(const std::string& name, const std::vector<std::string>& overrides) {
  const runs::Run run = run_of(name, overrides);
  if (!run.config.graph.mode.empty()) {
    return;  // its plan is its program: see modes.cpp
  }
  const Account plan = runs::try_step(run).account;
  const Account use = measured(run);
  std::filesystem::remove_all(run.config.checkpoint.folder);
  std::string text = name;
  for (const std::string& one : overrides) {
    text += " " + one;
  }
  INFO(text << "\nplanned  " << runs::memory_text(plan.memory) << "\nmeasured "
            << runs::memory_text(use.memory));
  CHECK(collectives_of(plan) == collectives_of(use));
  // A rank sees its part of what experts compute, and of a ring.
  if (!runs::language_of(run).shape().values.contains("experts") &&
      name != "context_parallel.toml") {
    CHECK(plan.model_flops == use.model_flops);
  }
  CHECK(plan.flops() == use.flops());
  // Copies within redistributions are not planned.
  CHECK(plan.bytes() == Approx(use.bytes()).epsilon(0.2));
  for (int i = 0; i < memory_category_count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto category = static_cast<MemoryCategory>(i);
    INFO(name_of(category));
    if (category == MemoryCategory::workspace) {
      CHECK(use.memory.peak[at] > 0);
      CHECK(plan.memory.peak[at] == use.memory.peak[at]);
    } else if (category != MemoryCategory::other) {  // what was made before the ranks started
      CHECK(std::abs(plan.memory.peak[at] - use.memory.peak[at]) <=
            use.memory.peak[at] * 5 / 100 + (16 << 10));
    }
  }
  CHECK(std::abs(plan.memory.total_peak - use.memory.total_peak) <=
        use.memory.total_peak * 5 / 100);
}

/// Of a Llama without recomputation, by hand: 2 per weight of a product and token, and as much for
/// each query, key that it sees, and number of their heads, for scores and for values; backward
/// twice as many.
double llama_flops(const runs::Run& run) {
  const auto size = [&](const char* key) {
    return static_cast<double>(
        std::get<std::int64_t>(runs::language_of(run).shape().values.at(key)));
  };
  const double dim = size("dim");
  const double width = size("heads") * size("head_dim");
  double feed_forward = 3 * dim * size("ffn_dim");
  if (runs::language_of(run).shape().values.contains("experts")) {
    feed_forward = size("experts_per_token") * feed_forward + dim * size("experts");
  }
  const double layer =
      2 * dim * width + 2 * dim * size("kv_heads") * size("head_dim") + feed_forward;
  const auto length = static_cast<double>(run.config.data.seq_len);
  const double rows = static_cast<double>(run.config.train.batch);
  const double weights =
      size("layers") * layer + dim * static_cast<double>(runs::language_of(run).shape().vocab);
  const double pairs = length * (length + 1) / 2;
  const double attention = size("layers") * width * 2 * pairs;  // scores and values
  return 3 * 2 * rows * (weights * length + attention);
}

}  // namespace

TEST_CASE("the plan announces what a run does and the memory that it uses, by category") {
  parallel_test::use_shipped_plugins();
  for (const std::string& name : parallel_test::shipped_configs()) {
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

TEST_CASE("the FLOPs of a step are those of the model, whatever its layout and micro-batches") {
  for (const char* name :
       {"one_rank.toml", "replicated.toml", "fsdp_tensor.toml", "loss_parallel.toml",
        "three_d.toml", "expert_parallel.toml", "context_parallel.toml"}) {
    INFO(name);
    const runs::Run run = run_of(name, {});
    const double expected = llama_flops(run);
    const Account whole = runs::try_step(run).account;
    CHECK(whole.model_flops == Approx(expected).epsilon(1e-12));
    CHECK(whole.flops() >= expected / static_cast<double>(run.config.ranks()) * 0.999);
    const Account parts = runs::try_step(run_of(name, {"train.micro_batch=1"})).account;
    CHECK(parts.model_flops == Approx(expected).epsilon(1e-12));
    const std::pair<std::string, std::string> reduced = {"shard", "reduce_scatter"};
    if (const auto once = whole.collectives.find(reduced); once != whole.collectives.end()) {
      // The axis that does not split the batch; experts are on one that does.
      const int tensor = runs::language_of(run).shape().values.contains("experts") ? 1 : 2;
      const std::int64_t micro_batches = run.config.train.batch / (run.config.ranks() / tensor);
      REQUIRE(micro_batches > 1);
      CHECK(parts.collectives.at(reduced).calls == micro_batches * once->second.calls);
      if (name == std::string("fsdp_tensor.toml")) {  // whole gradients are reduced once a step
        const std::vector<std::string> accumulating = {
            "train.micro_batch=1", "parallel[3].options={accumulate=\"whole\"}"};
        const Account step = runs::try_step(run_of(name, accumulating)).account;
        CHECK(step.collectives.at(reduced).calls == once->second.calls);
      }
    }
    const Account again =
        runs::try_step(run_of(name, {"train.activation_checkpointing=true"})).account;
    CHECK(again.model_flops == Approx(expected).epsilon(1e-12));
    CHECK(again.flops() > 1.2 * whole.flops());
  }
}

TEST_CASE("activations of a rank fall as the number of ranks that share a sequence grows") {
  parallel_test::use_shipped_plugins();
  const auto activations = [](const char* form, int ranks) {
    const runs::Run run =
        run_of("context_parallel.toml",
               {"mesh.shape=[" + std::to_string(ranks) + "]",
                R"(parallel=[{style="ContextParallel",axis="context",on=["**.inner_attention"],)"
                R"(options={form=")" +
                    std::string(form) + R"("}}])"});
    return runs::try_step(run)
        .account.memory.peak[static_cast<std::size_t>(MemoryCategory::activation)];
  };
  for (const char* const form : {"ring", "all_to_all"}) {
    INFO(form);
    const auto one = static_cast<double>(activations(form, 1));
    CHECK(static_cast<double>(activations(form, 2)) < 0.55 * one);
    if (form != std::string_view("all_to_all")) {
      CHECK(static_cast<double>(activations(form, 4)) < 0.3 * one);
      CHECK(static_cast<double>(activations(form, 8)) < 0.16 * one);
    }
  }
}

TEST_CASE("what a rank of a ring receives is what the page on context parallelism says") {
  parallel_test::use_shipped_plugins();
  const auto received = [](std::int64_t ranks) {
    const runs::Run run =
        run_of("context_parallel.toml", {"mesh.shape=[" + std::to_string(ranks) + "]"});
    const auto& all = runs::try_step(run).account.collectives;
    return std::pair(all.at({"context", "shift"}).bytes, all.at({"context", "all_to_all"}).bytes);
  };
  for (const std::int64_t ranks : {2, 8, 32}) {
    INFO(ranks << " ranks");
    const std::int64_t tokens = 64 / ranks;  // of a rank
    // Two layers of 4 heads, 2 of keys and values, all of width 32; 8 sequences; f32.
    const std::int64_t key_bytes = 2 * 8 * tokens * 2 * 2 * 32 * 4;
    const std::int64_t query_bytes = 2 * 8 * tokens * 2 * 4 * 32 * 4;
    const std::int64_t delta_bytes = 2 * 8 * tokens * 4 * 4;
    const auto [around, across] = received(ranks);
    // Gradients of second keys go across the ring instead of home.
    CHECK(around == 3 * key_bytes * (ranks - 1) - key_bytes / 2);
    CHECK(across == 2 * (key_bytes + query_bytes) / 2 + delta_bytes / 2 + key_bytes / 2);
  }
}
