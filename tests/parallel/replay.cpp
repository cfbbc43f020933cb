// Every config of configs/, recorded and replayed: the bits of eager steps, also from the text in
// another run.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.passes;
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

constexpr std::size_t steps = 14;

runs::Run run_of(const std::string& name, const std::vector<std::string>& overrides) {
  return small_run(name, overrides,
                   {"model.dim=64", "model.ffn_dim=96", "data.seq_len=16", "train.steps=40"});
}

using Parameters = std::map<std::string, std::vector<double>>;

Parameters parameters_of(runs::Trainer& trainer) {
  Parameters all;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    all[name] = to_doubles(parameter->value.local());
  }
  return all;
}

/// What one rank's eager steps gave.
struct Eager {
  std::vector<StepResult> results;
  Parameters at_ten;
  Parameters at_end;
  std::string text;  // of the program that was recorded afterwards
};

void same(const StepResult& got, const StepResult& expected, std::size_t step) {
  check(got.loss == expected.loss && got.grad_norm == expected.grad_norm && got.lr == expected.lr,
        "step " + std::to_string(step + 1) + ": loss " + std::to_string(got.loss) + " instead of " +
            std::to_string(expected.loss));
}

/// The text without what needs values: the host's comparison of what gradients the ranks have, from
/// which nothing follows in a program, and the recorded value of what follows the norm.
std::string without_values(Program program) {
  for (Section& section : program.sections) {
    std::erase_if(section.instructions,
                  [](const Instruction& i) { return i.kind == Instruction::Kind::check; });
  }
  return std::regex_replace(program.to_text(), std::regex("grad_scale=[-+.0-9e]+"), "grad_scale=_");
}

/// `budget`: of the captured steps' memory. `offload`: a folder for what does not fit.
void replays(const std::string& name, const std::vector<std::string>& overrides,
             const std::string& budget = "", const std::string& offload = "") {
  std::string what = name;
  for (const std::string& one : overrides) {
    what += " " + one;
  }
  INFO(what);
  runs::Run run = run_of(name, overrides);
  const auto ranks = static_cast<int>(run.config.ranks());
  std::vector<Eager> all(static_cast<std::size_t>(ranks));
  runs::Run reference = run;
  const bool mode = !run.config.graph.mode.empty();
  if (mode) {  // all of its steps have a program
    reference.config.graph.passes = {};
    reference.config.graph.executor = "interpreter";
  }
  on_ranks(ranks, [&](int rank) {
    Eager& eager = all[static_cast<std::size_t>(rank)];
    runs::Trainer trainer(reference);
    for (std::size_t i = 0; i < steps; ++i) {
      if (i == 10) {
        eager.at_ten = parameters_of(trainer);
      }
      eager.results.push_back(trainer.step());
    }
    eager.at_end = parameters_of(trainer);
  });
  run.config.graph.capture = true;
  run.config.graph.memory_budget = budget;
  run.config.graph.offload = offload;
  REQUIRE_NOTHROW(on_ranks(ranks, [&](int rank) {
    Eager& eager = all[static_cast<std::size_t>(rank)];
    runs::Trainer trainer(run);
    for (std::size_t i = 0; i < steps; ++i) {
      same(trainer.step(), eager.results[i], i);
    }
    check(trainer.replays().replayed == (mode ? steps : steps - 2), "steps are replayed");
    compare_programs(collective::World::current(), trainer.program());
    check(parameters_of(trainer) == eager.at_end, "parameters");
    eager.text = trainer.program_text();
  }));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string& text = all[static_cast<std::size_t>(rank)].text;
    CHECK(graph::difference(without_values(Program::parse(text)),
                            without_values(runs::capture_step(run, rank))) == "");
  }
  REQUIRE_NOTHROW(on_ranks(ranks, [&](int rank) {
    const Eager& eager = all[static_cast<std::size_t>(rank)];
    runs::Trainer trainer(run);
    trainer.capture_ahead();
    compare_programs(collective::World::current(), trainer.program());
    for (std::size_t i = 0; i < 10; ++i) {
      same(trainer.step(), eager.results[i], i);
    }
    check(trainer.replays().replayed == 10, "all steps are replayed: " + trainer.replays().refusal);
    check(parameters_of(trainer) == eager.at_ten, "parameters of steps captured ahead");
  }));
  if (!offload.empty()) {  // the text alone has no other memory
    CHECK(all[0].text.find(" elsewhere = memory.empty()") != std::string::npos);
    return;
  }
  run.config.graph.passes = {};  // they were run
  run.config.graph.memory_budget = "";
  for (const char* executor : {"interpreter", "compiled"}) {
    run.config.graph.executor = executor;
    REQUIRE_NOTHROW(on_ranks(ranks, [&](int rank) {
      const Eager& eager = all[static_cast<std::size_t>(rank)];
      runs::Trainer trainer(run);
      trainer.set_program(eager.text, "the recorded text");
      for (std::size_t i = 0; i < 10; ++i) {
        same(trainer.step(), eager.results[i], i);
      }
      check(trainer.replays().replayed == 10,
            "all steps are replayed: " + trainer.replays().refusal);
      check(trainer.program_text() == eager.text, "the text is stable");
      check(parameters_of(trainer) == eager.at_ten, "parameters from the text");
    }));
  }
}

}  // namespace

namespace {

const std::string passes_by_hand =
    R"(graph.passes=["dead", "views", "common", "lifetimes", "recompute", "late_waits"])";
const std::string keeping_passes =
    R"(graph.passes=["views", "common", "dead", "lifetimes", "keep_gathers", "early_issues"])";

}  // namespace

TEST_CASE(
    "steps of every config are recorded, captured without data, read back and replayed bit by "
    "bit") {
  parallel_test::use_shipped_plugins();
  for (const std::string& name : parallel_test::shipped_configs()) {
    replays(name, {});
  }
  replays("qlora.toml", {passes_by_hand, "model.dropout=0.1"});
  replays("fully_sharded.toml", {"model.dropout=0.1"}, "1600KiB");
  replays("hybrid.toml", {keeping_passes, "train.micro_batch=1"});
  // What frozen parameters compute with is kept from step to step, and must be in the recorded
  // ones.
  replays("lora.toml", {"train.precision=bf16"});
  replays("fsdp_tensor.toml", {"train.parameters=bf16", "train.precision=bf16"});
  replays("tensor_parallel.toml", {"train.precision=bf16", "train.freeze=[model.embed_tokens.*]"});
  replays("fsdp_tensor.toml", {"train.activation_checkpointing=true", "model.dropout=0.1"});
  replays("fully_sharded.toml",
          {"train.freeze=[model.embed_tokens.*]", "model.tie_embeddings=true"});
}

TEST_CASE("steps of configs with other options are recorded, read back and replayed bit by bit",
          "[.long]") {
  parallel_test::use_shipped_plugins();
  for (const char* name : {"demo.toml", "fully_sharded.toml", "qlora.toml", "bf16.toml"}) {
    replays(name, {passes_by_hand, "model.dropout=0.1"});
  }
  for (const char* name : {"fully_sharded.toml", "qlora.toml", "float8.toml", "hybrid.toml"}) {
    replays(name, {keeping_passes, "train.micro_batch=1"});
  }
  replays("fully_sharded.toml", {keeping_passes}, "1700KiB");
  for (const char* name : {"fully_sharded.toml", "one_rank.toml", "tensor_parallel.toml"}) {
    replays(name, {"train.precision=bf16", "train.freeze=[model.embed_tokens.*]"});
  }
  replays("demo.toml", {}, "1100KiB");
  for (const char* name : {"fully_sharded.toml", "fsdp_tensor.toml"}) {
    replays(name, {"train.micro_batch=1", "model.dropout=0.1"});
    replays(name, {"train.activation_checkpointing=true", "model.dropout=0.1"});
    replays(name, {"train.freeze=[model.embed_tokens.*]", "model.tie_embeddings=true"});
  }
}

namespace {

/// Whether the program can be kept within the budget: with other memory, or by computing values
/// again alone.
bool fits(Program program, std::int64_t kib, bool other_memory) {
  graph::FitOptions options;
  if (other_memory) {
    options.offloading = graph::OffloadRates();
  }
  try {
    graph::fit_memory(program, kib * 1024, options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// A budget of memory that steps of the config keep only with values elsewhere, whatever computing
/// and the disk cost here.
std::string tight_budget(const std::string& name, const std::vector<std::string>& overrides) {
  runs::Run run = run_of(name, overrides);
  run.config.graph.capture = true;
  std::erase(run.config.graph.passes, "keep_gathers");
  std::vector<std::string>& passes = run.config.graph.passes;
  const auto last = std::ranges::find(passes, "lifetimes");
  REQUIRE(last != passes.end());
  passes.erase(last + 1, passes.end());  // what a budget begins with
  const Program whole = runs::capture_step(run);
  std::int64_t kib = graph::planned_bytes(whole) / 1024;
  while (fits(whole, kib, false)) {
    kib = kib * 99 / 100;
  }
  REQUIRE(fits(whole, kib, true));
  return std::to_string(kib) + "KiB";
}

void replays_offloaded(const std::string& name, const std::vector<std::string>& overrides) {
  const std::string budget = tight_budget(name, overrides);
  INFO(name << " within " << budget);
  const testing::Folder folder;
  replays(name, overrides, budget, folder.path().string());
  CHECK(folder.names().empty());
}

}  // namespace

TEST_CASE("steps that keep values in a file have the bits of eager steps") {
  parallel_test::use_shipped_plugins();
  replays_offloaded("fully_sharded.toml", {"train.micro_batch=1", "model.dropout=0.1"});
  replays_offloaded("float8.toml", {});
}

TEST_CASE("steps of other configs that keep values in a file have the bits of eager steps",
          "[.long]") {
  parallel_test::use_shipped_plugins();
  replays_offloaded("fully_sharded.toml",
                    {R"(graph.passes=["views", "common", "dead", "lifetimes", "keep_gathers"])"});
  replays_offloaded("fsdp_tensor.toml", {"train.activation_checkpointing=true"});
  replays_offloaded("tensor_parallel.toml", {"train.precision=bf16"});
  replays_offloaded("qlora.toml", {});
}
