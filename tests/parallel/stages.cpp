// Models in stages: the losses of a model that every rank has whole, in every schedule, division
// and composition; checkpoints that continue in other layouts; what is refused before ranks start.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.pipeline;
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
import tessera.checkpoint;
import tessera.train;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;

#include "saved_run.hpp"
#include "small_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;
using tessera::testing::Folder;

namespace {

using Overrides = std::vector<std::string>;

/// What a run of some steps says, and its evaluation afterwards.
struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
  double evaluated = 0;
};

/// Styles on the axes besides that of stages.
struct Others {
  const char* name;
  std::string axes;   // "\"shard\"", or empty
  std::string shape;  // "2"
  std::string entries;
};

std::string entry(const std::string& style, const std::string& axis, const std::string& on,
                  const std::string& options = "") {
  return "{style=\"" + style + "\",axis=\"" + axis + "\",on=[" + on + "]" +
         (options.empty() ? "" : ",options={" + options + "}") + "}";
}

const std::string split_layers =
    entry("PrepareModuleInput", "tensor", R"("model.layers.*.{self_attn,mlp}")") + "," +
    entry("ColwiseParallel", "tensor",
          R"("model.layers.*.self_attn.{q,k,v}_proj","model.layers.*.mlp.{gate,up}_proj")") +
    "," +
    entry("RowwiseParallel", "tensor",
          R"("model.layers.*.self_attn.o_proj","model.layers.*.mlp.down_proj")");
const std::string split_sequence =
    entry("RowwiseParallel", "tensor", R"("model.embed_tokens")",
          R"~(input="Replicate",output="Shard(1)")~") +
    "," +
    entry("SequenceParallel", "tensor",
          R"("model.layers.*.{input,post_attention}_layernorm","model.norm")") +
    "," +
    entry("PrepareModuleInput", "tensor", R"("model.layers.*.{self_attn,mlp}")",
          R"~(input="Shard(1)",desired="Replicate")~") +
    "," +
    entry("ColwiseParallel", "tensor",
          R"("model.layers.*.self_attn.{q,k,v}_proj","model.layers.*.mlp.{gate,up}_proj")") +
    "," +
    entry("RowwiseParallel", "tensor",
          R"("model.layers.*.self_attn.o_proj","model.layers.*.mlp.down_proj")",
          R"~(output="Shard(1)")~") +
    "," +
    entry("ColwiseParallel", "tensor", R"("lm_head")", R"~(input="Shard(1)",output="Shard(-1)")~") +
    "," + entry("LossParallel", "tensor", R"("loss")");

const Others alone = {"alone", "", "", ""};
const Others sharded = {"FSDP", "\"shard\"", "2",
                        entry("FSDP", "shard", R"("model.layers.*",".")")};
const Others replicated = {"Replicate", "\"data\"", "2", entry("Replicate", "data", R"(".")")};
const Others tensor = {"tensor parallel", "\"tensor\"", "2", split_layers};
const Others sequence = {"sequence and loss parallel", "\"tensor\"", "2", split_sequence};
const Others accumulating = {
    "FSDP that reduces once a step", "\"shard\"", "2",
    entry("FSDP", "shard", R"("model.layers.*",".")", R"(accumulate="whole")")};
const Others lenient = {"FSDP without errors of missing gradients", "\"shard\"", "2",
                        entry("FSDP", "shard", R"("model.layers.*",".")", R"(missing="zeros")")};
const Others low_rank = {
    "LoRA", "", "",
    R"({style="LoRA",on=["model.layers.*.{self_attn,mlp}.*_proj"],options={rank=4,alpha=8}})"};
const Others both = {"FSDP with tensor parallel", "\"shard\",\"tensor\"", "2,2",
                     split_layers + "," + sharded.entries};

const Others context = {"context parallel", "\"context\"", "2",
                        entry("ContextParallel", "context", R"("**.inner_attention")")};

/// Stages over so many ranks; 0: none.
struct Division {
  int ranks = 0;
  std::string options = {};
};

/// Backwards in two halves.
Division zero_bubble(int ranks) { return {ranks, R"(schedule="zero_bubble")"}; }
const Division in_a_v = {2, R"(schedule="zero_bubble_v")"};

/// A run of a small model of four layers, whose steps have eight rows.
runs::Run run_of(const char* config, const Others& layout, const Division& stages,
                 const Overrides& more) {
  std::string axes = layout.axes;
  std::string shape = layout.shape;
  std::string entries = layout.entries;
  const auto before = [](const std::string& first, const std::string& rest) {
    return first + (rest.empty() ? "" : "," + rest);
  };
  if (stages.ranks > 0) {
    axes = before("\"pipe\"", axes);
    shape = before(std::to_string(stages.ranks), shape);
    entries = before(entry("Pipeline", "pipe", R"(".")", stages.options), entries);
  }
  Overrides all = {"model.dim=16",
                   "model.heads=4",
                   "model.layers=4",
                   "data.seq_len=6",
                   "data.validation=0.1",
                   "data.validation_windows=8",
                   "data.text=[\"" TESSERA_SOURCE_FOLDER
                   "/tests/reference/data/optimizer_curves.json\"]",
                   "train.steps=3",
                   "train.batch=8",
                   "train.micro_batch=1",
                   "train.clip_grad_norm=0.5",
                   "optimizer.warmup=0",
                   "checkpoint.folder=",
                   "log.metrics=",
                   "mesh.axes=[" + axes + "]",
                   "mesh.shape=[" + shape + "]",
                   "parallel=[" + entries + "]"};
  all.insert(all.end(), more.begin(), more.end());
  runs::Run run;
  run.config = load_config(std::string(TESSERA_SOURCE_FOLDER "/configs/") + config, all);
  run.task = runs::open_language_task(run.config);
  run.fingerprint = run.task->fingerprint(run.config);
  return run;
}

runs::Run run_in(const Others& layout, const Division& stages, const Overrides& more = {}) {
  Overrides all = {"model.kv_heads=2", "model.ffn_dim=24"};
  all.insert(all.end(), more.begin(), more.end());
  return run_of("one_rank.toml", layout, stages, all);
}

/// Rank 0's, of whom all others have the same.
Curve curve_of(const runs::Run& run, int steps = 3) {
  Curve curve;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    Curve own;
    for (int step = 0; step < steps; ++step) {
      const StepResult result = trainer.step();
      own.losses.push_back(result.loss);
      own.norms.push_back(result.grad_norm);
    }
    own.evaluated = trainer.validate()->loss;
    check(std::isfinite(own.losses.back()), "a loss");
    if (rank == 0) {
      curve = own;
    }
  });
  return curve;
}

/// The same of captured steps, all of which but the first two are replayed (`ahead`: all).
Curve captured_curve_of(const runs::Run& run, bool ahead) {
  Curve curve;
  on_ranks(static_cast<int>(run.config.ranks()), [&](int rank) {
    runs::Trainer trainer(run);
    if (ahead) {
      trainer.capture_ahead();
      compare_programs(collective::World::current(), trainer.program());
    }
    Curve own;
    for (int step = 0; step < 4; ++step) {
      const StepResult result = trainer.step();
      own.losses.push_back(result.loss);
      own.norms.push_back(result.grad_norm);
    }
    check(trainer.replays().replayed == (ahead ? 4 : 2), to_string(trainer.replays()));
    compare_programs(collective::World::current(), trainer.program());
    own.evaluated = trainer.validate()->loss;
    if (rank == 0) {
      curve = own;
    }
  });
  return curve;
}

/// Captured steps have the bits of those that are taken as they are written.
void captured_alike(const Others& layout, const Division& stages, Overrides features,
                    const std::string& executor = "planned", bool across_steps = false) {
  INFO(layout.name << ", " << stages.options << ", " << executor);
  features.emplace_back("train.steps=4");
  const Curve written = curve_of(run_in(layout, stages, features), 4);
  features.insert(features.end(), {"graph.capture=true", "graph.executor=" + executor});
  if (across_steps) {
    features.emplace_back("graph.across_steps=true");
  }
  const runs::Run run = run_in(layout, stages, features);
  for (const bool ahead : {false, true}) {
    INFO((ahead ? "ahead" : "with data"));
    const Curve captured = captured_curve_of(run, ahead);
    CHECK(captured.losses == written.losses);
    CHECK(captured.norms == written.norms);
    CHECK(captured.evaluated == written.evaluated);
  }
}

/// The bits of losses; norms are sums of f64 in another order.
void same_bits(const Curve& a, const Curve& b) {
  CHECK(a.losses == b.losses);
  CHECK(difference(a.norms, b.norms) < 1e-13);
  CHECK(a.evaluated == b.evaluated);
}

}  // namespace

TEST_CASE("a model in stages has the losses of a whole one, bit for bit") {
  const Curve whole = curve_of(run_in(alone, {}));
  CHECK(whole.losses.back() < whole.losses.front());
  for (const Division& stages : {Division{2}, Division{2, R"(schedule="gpipe")"}, Division{3},
                                 Division{4}, Division{2, R"(split=["model.layers.1"])"},
                                 Division{3, R"(split=["model.layers.3","model.norm"])"},
                                 Division{2, R"(schedule="interleaved")"}, zero_bubble(2),
                                 zero_bubble(3), zero_bubble(4), in_a_v}) {
    INFO(stages.ranks << " ranks, " << stages.options);
    same_bits(curve_of(run_in(alone, stages)), whole);
  }
}

TEST_CASE("stages are composed with styles of other axes") {
  for (const Others& layout :
       {sharded, accumulating, replicated, tensor, sequence, both, low_rank, context}) {
    INFO(layout.name);
    same_bits(curve_of(run_in(layout, {2})), curve_of(run_in(layout, {})));
  }
  const Division interleaved = {2, R"(schedule="interleaved")"};
  same_bits(curve_of(run_in(sharded, interleaved)), curve_of(run_in(sharded, {})));
}

TEST_CASE("backwards in two halves are composed with styles of other axes") {
  for (const Others& layout :
       {sharded, accumulating, lenient, replicated, sequence, both, low_rank, context}) {
    INFO(layout.name);
    same_bits(curve_of(run_in(layout, zero_bubble(2))), curve_of(run_in(layout, {})));
  }
  for (const Others& layout : {sharded, accumulating, lenient}) {
    INFO(layout.name);
    same_bits(curve_of(run_in(layout, in_a_v)), curve_of(run_in(layout, {})));
  }
}

TEST_CASE("a schedule from a file may have whole backwards and halves") {
  const Folder folder;
  const std::string file = folder / "mixed.txt";
  std::ofstream(file) << "schedule mixed\nmicro_batches 8\nstages 0 1\n"
                         "rank 0: F0.0 F0.1 B0.0 F0.2 I0.1 F0.3 I0.2 W0.1 W0.2 B0.3 F0.4 F0.5 "
                         "F0.6 I0.4 I0.5 W0.4 W0.5 B0.6 F0.7 I0.7 W0.7\n"
                         "rank 1: F1.0 B1.0 F1.1 I1.1 F1.2 W1.1 B1.2 F1.3 B1.3 F1.4 I1.4 F1.5 "
                         "I1.5 W1.4 W1.5 F1.6 B1.6 F1.7 B1.7\n";
  const Division mixed = {2, "schedule_file=\"" + file + "\""};
  for (const Others& layout : {alone, sharded, accumulating}) {
    INFO(layout.name);
    const Overrides steps = {layout.shape.empty() ? "train.batch=8" : "train.batch=16",
                             "data.validation_windows=16"};
    same_bits(curve_of(run_in(layout, mixed, steps)), curve_of(run_in(layout, {}, steps)));
  }
}

TEST_CASE("five axes have the losses of one rank") {
  const Others five = {
      "five", R"("data","shard","context","tensor")", "2,2,2,2",
      split_layers + "," + context.entries + "," + replicated.entries + "," + sharded.entries};
  const Curve one = curve_of(run_in(alone, {}, {"train.micro_batch=2"}));
  const Curve curve = curve_of(run_in(five, {2}));
  CHECK(difference(curve.losses, one.losses) < 2e-6);
  CHECK(difference({curve.evaluated}, {one.evaluated}) < 2e-6);
}

TEST_CASE("stages keep the bits of what a run may have", "[features]") {
  for (const Overrides& features :
       {Overrides{"model.dropout=0.1"}, Overrides{"train.activation_checkpointing=true"},
        Overrides{"train.head_rows=3"}, Overrides{"train.precision=bf16"},
        Overrides{"train.freeze=[\"model.embed_tokens.*\",\"model.layers.{0,1}.**\"]"},
        Overrides{"train.precision=f16", "train.loss_scaling=dynamic"},
        Overrides{"optimizer.groups=[{on=[\"lm_head.*\"],lr=1e-4}]"}}) {
    INFO(features.front());
    const Curve whole = curve_of(run_in(alone, {}, features));
    same_bits(curve_of(run_in(alone, {2}, features)), whole);
    same_bits(curve_of(run_in(alone, zero_bubble(2), features)), whole);
  }
}

TEST_CASE("a GPT-2 is a chain of pieces too", "[features]") {
  const Overrides untied = {"model.tie_embeddings=false"};
  same_bits(curve_of(run_of("gpt2.toml", alone, {2}, untied)),
            curve_of(run_of("gpt2.toml", alone, {}, untied)));
}

TEST_CASE("tied weights of two stages stay equal, and follow the whole model", "[features]") {
  const Overrides tied = {"model.tie_embeddings=true"};
  const Curve whole = curve_of(run_in(alone, {}, tied));
  for (const auto& [layout, stages] : {std::pair(alone, Division{2}),
                                       {sharded, Division{2}},
                                       {sharded, zero_bubble(2)},
                                       {alone, in_a_v}}) {
    INFO(layout.name << ", " << stages.options);
    const Curve curve = curve_of(run_in(layout, stages, tied));
    CHECK(difference(curve.losses, whole.losses) < 2e-6);
    CHECK(difference(curve.norms, whole.norms) < 2e-5);
    CHECK(difference({curve.evaluated}, {whole.evaluated}) < 2e-6);
  }
}

TEST_CASE("what stages tell each other is known in all steps of a kind but the first") {
  const auto losses_of = [](const Division& stages, bool changed) {
    const runs::Run run = run_in(
        alone, stages, {"model.dropout=0.1", "train.batch=16", "data.validation_windows=16"});
    const runs::StepRows few = {.all = 8, .micro = 1};
    const runs::StepRows many = {.all = 16, .micro = 2};  // as many micro-batches
    std::vector<double> losses;
    on_ranks(std::max(stages.ranks, 1), [&](int rank) {
      runs::Trainer trainer(run);
      const std::vector<double> own = {trainer.step(few).loss, trainer.step(many).loss,
                                       trainer.step(few).loss};
      if (changed) {
        trainer.model().train(rank != 0);
        trainer.step(few);
      }
      if (rank == 0) {
        losses = own;
      }
    });
    return losses;
  };
  CHECK(losses_of({2}, false) == losses_of({}, false));
  const std::string error = error_of([&] { losses_of({2}, true); });
  INFO(error);
  CHECK(contains(error,
                 "what leaves stage 0 (model.embed_tokens to model.layers.2) is not what it was"));
  CHECK(contains(error, "(expected f32 1 6 16"));
}

TEST_CASE("captured steps of a model in stages have the same bits", "[captured]") {
  const Overrides dropout = {"model.dropout=0.1"};
  captured_alike(alone, {2, R"(schedule="gpipe")"}, dropout);
  captured_alike(alone, {3}, dropout);
  captured_alike(alone, {2, R"(schedule="interleaved")"}, dropout);
  captured_alike(alone, zero_bubble(2), dropout, "interpreter");
  captured_alike(alone, in_a_v, dropout, "compiled");
}

TEST_CASE("captured stages are composed with styles and features", "[captured]") {
  captured_alike(sharded, {2}, {"model.dropout=0.1", "train.precision=bf16"}, "compiled");
  captured_alike(sharded, in_a_v, {"model.tie_embeddings=true"});
  captured_alike(accumulating, zero_bubble(2), {"train.activation_checkpointing=true"});
  captured_alike(sequence, {2}, {"model.dropout=0.1"});
  captured_alike(alone, {2},
                 {"train.freeze=[\"model.embed_tokens.*\",\"model.layers.{0,1}.**\"]",
                  "train.activation_checkpointing=true"});
  captured_alike(sharded, {2}, {}, "planned", true);
}

TEST_CASE("captured stages gather copies of several groups in every form", "[captured]") {
  const std::string products =
      R"("model.layers.*.self_attn.{q,o}_proj","model.layers.*.mlp.*_proj")";
  const Others in_codes = {
      "FSDP that gathers 8-bit codes", sharded.axes, sharded.shape,
      R"({style="Float8",on=[)" + products + R"(],options={all_gather=true}},)" + sharded.entries};
  const Others with_updates = {"FSDP with LoRA", sharded.axes, sharded.shape,
                               low_rank.entries + "," + sharded.entries};
  const Division interleaved = {2, R"(schedule="interleaved")"};
  for (const Division& stages : {interleaved, in_a_v}) {
    captured_alike(sharded, stages, {"train.precision=bf16"});
    captured_alike(sharded, stages, {"train.precision=f16", "train.loss_scaling=dynamic"});
    captured_alike(in_codes, stages, {"train.precision=bf16", "model.ffn_dim=32"});
    captured_alike(with_updates, stages, {"train.precision=bf16"});
  }
}

TEST_CASE("a step is not captured ahead as long as other stages are guessed", "[captured]") {
  const runs::Run run = run_in(alone, in_a_v, {"model.dropout=0.1", "graph.capture=true"});
  runs::StepSetup setup = runs::setup_of(run);
  const auto captured = [&](int rank) {
    return error_of([&] { on_meta(rank, [&] { runs::Trainer(run, setup, {}).capture(); }); });
  };
  CHECK(contains(captured(0), "is planned before the stages that it gets hidden states from"));
  setup.states = std::make_shared<StageStates>();
  // Rank 0 has the first stage and the last one, rank 1 those between.
  CHECK(contains(captured(0), "what its stages tell each other was not planned"));
  CHECK(contains(captured(1), "what its stages tell each other was not planned"));
  CHECK(captured(0) == "no error");
  CHECK(captured(1) == "no error");
}

TEST_CASE("the ranks of one stage may take a step that the others replay", "[captured]") {
  const auto losses_of = [](const std::string& captured) {
    const runs::Run run = run_in(alone, {2}, {"train.steps=7", "graph.capture=" + captured});
    std::vector<double> losses;
    on_ranks(2, [&](int rank) {
      runs::Trainer trainer(run);
      std::vector<double> own;
      for (int step = 0; step < 7; ++step) {
        if (step == 3) {  // which is in the last stage only
          for (const nn::ParameterPointer& parameter : nn::all_parameters(trainer.model())) {
            parameter->value.set_requires_grad(parameter->name != "lm_head.weight");
          }
        }
        own.push_back(trainer.step().loss);
      }
      const std::int64_t replayed = captured == "false" ? 0 : rank == 0 ? 5 : 3;
      check(trainer.replays().replayed == replayed, to_string(trainer.replays()));
      if (rank == 0) {
        losses = own;
      }
    });
    return losses;
  };
  CHECK(losses_of("true") == losses_of("false"));
}

TEST_CASE("a run that is saved in stages continues in any others, and without") {
  const Overrides longer = {"train.steps=4", "model.dropout=0.1"};
  const Overrides tied = {"train.steps=4", "model.tie_embeddings=true"};
  struct Change {
    runs::Run saved;
    runs::Run continued;
    bool same_bits = true;
  };
  const std::vector<Change> changes = {
      {run_in(alone, {2}, longer), run_in(alone, {}, longer)},
      {run_in(alone, {}, longer), run_in(alone, {3}, longer)},
      {run_in(sharded, {2}, longer), run_in(sharded, {}, longer)},
      {run_in(alone, {2}, longer), run_in(alone, {2, R"(split=["model.layers.1"])"}, longer)},
      {run_in(alone, {2}, tied), run_in(alone, {}, tied), false},
      {run_in(alone, {}, tied), run_in(sharded, {2}, tied), false}};
  const Folder folder;
  int number = 0;
  for (const Change& change : changes) {
    INFO("change " << number);
    const std::string place = folder / std::to_string(number++);
    const std::vector<double> expected = save(change.saved, place);
    const std::string checkpoint = checkpoint_folder(place, 2);
    static_cast<void>(runs::check_stored(change.continued, checkpoint, false));
    const std::vector<double> got = continue_from(change.continued, checkpoint);
    if (change.same_bits) {
      CHECK(got == expected);
    } else {
      CHECK(difference(got, expected) < 2e-6);
    }
  }
}

TEST_CASE("a rank has the parameters of its stages only, and the plan knows the memory of each") {
  const runs::Run run = run_in(alone, {2});
  std::vector<std::int64_t> elements(2);
  on_ranks(2, [&](int rank) {
    runs::Trainer trainer(run);
    for (const nn::ParameterPointer& parameter : nn::all_parameters(trainer.model())) {
      elements[static_cast<std::size_t>(rank)] += parameter->value.numel();
    }
  });
  const runs::Trial whole = runs::try_step(run_in(alone, {}));
  const runs::Trial trial = runs::try_step(run);
  CHECK(elements[0] + elements[1] == whole.parameters);
  CHECK(trial.parameters == whole.parameters);
  CHECK(trial.account.model_flops == whole.account.model_flops);
  REQUIRE(trial.places.size() == 2);
  CHECK(trial.places[0].stages == "stage 0 (model.embed_tokens to model.layers.2)");
  CHECK(trial.places[1].stages == "stage 1 (model.layers.3 to lm_head)");
  constexpr auto parameter = static_cast<std::size_t>(MemoryCategory::parameter);
  CHECK(trial.places[0].memory.peak[parameter] < whole.account.memory.peak[parameter]);
}

TEST_CASE("ranks of each place use the memory that the plan announces") {
  constexpr auto activation = static_cast<std::size_t>(MemoryCategory::activation);
  std::map<std::string, double> kept;  // on the first rank
  for (const char* const schedule : {"gpipe", "1f1b", "zero_bubble", "zero_bubble_v"}) {
    INFO(schedule);
    const runs::Run run = run_in(alone, {2, std::string("schedule=\"") + schedule + "\""},
                                 {"model.dim=64", "model.ffn_dim=96", "data.seq_len=64"});
    const runs::Trial trial = runs::try_step(run);
    std::vector<MemoryStatistics> used(2);
    on_ranks(2, [&](int rank) {
      runs::Trainer trainer(run);
      trainer.step();
      trainer.step();
      Account account;
      {
        const AccountScope scope(account);
        trainer.step();
      }
      used[static_cast<std::size_t>(rank)] = account.memory;
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (const MemoryCategory category :
           {MemoryCategory::parameter, MemoryCategory::gradient, MemoryCategory::optimizer,
            MemoryCategory::activation}) {
        const auto at = static_cast<std::size_t>(category);
        const auto planned = static_cast<double>(trial.places[rank].memory.peak[at]);
        const auto peak = static_cast<double>(used[rank].peak[at]);
        INFO("rank " << rank << ", " << name_of(category) << ": planned " << planned << ", used "
                     << peak);
        CHECK(std::abs(planned - peak) <= peak * 0.05 + (16 << 10));
      }
    }
    kept[schedule] = static_cast<double>(used[0].peak[activation]);
  }
  // GPipe keeps all eight micro-batches, 1F1B two, and what a micro-batch needs besides is in both.
  CHECK(kept["gpipe"] > 3 * kept["1f1b"]);
  // Zero bubble keeps two too, and of one of them only what gradients of weights need.
  CHECK(kept["zero_bubble"] < 1.1 * kept["1f1b"]);
}

TEST_CASE("what cannot be computed in stages is refused before ranks start") {
  const auto refusal = [](const Others& layout, const Division& stages,
                          const Overrides& more = {}) {
    return error_of([&] { static_cast<void>(runs::try_step(run_in(layout, stages, more))); });
  };
  CHECK(contains(refusal(alone, {5}), "5 stages cannot be made of 4 layers"));
  CHECK(contains(refusal(alone, {2, R"(split=["model.layer.1"])"}),
                 "no stage can begin with 'model.layer.1'"));
  CHECK(contains(refusal(alone, {2, R"(split=["model.layers.1","model.layers.2"])"}),
                 "'split' makes 3 stages, and the schedule has 2"));
  CHECK(
      contains(refusal(alone, {2, R"(schedule="2f2b")"}), "option 'schedule' must be gpipe, 1f1b"));
  const Others unmatched = {"FSDP", "\"shard\"", "2",
                            entry("FSDP", "shard", R"("model.layers.*",".")",
                                  R"(ignore=["model.layers.3.**","model.layers.4.**"])")};
  CHECK(contains(refusal(unmatched, {2}),
                 "option 'ignore': the pattern 'model.layers.4.**' matches no parameter"));
  CHECK(contains(refusal(alone, {2, R"(schedule="interleaved")"}, {"train.micro_batch=8"}),
                 "interleaved"));
  CHECK(contains(refusal({"", "", "", entry("Replicate", "pipe", R"(".")")}, {2}), "along which"));
  CHECK(contains(error_of([] {
                   runs::Run run = run_in(alone, {2});
                   run.config.parallel.front().on = {"model"};
                   static_cast<void>(runs::try_step(run));
                 }),
                 "applied to a part"));
}

TEST_CASE("an error in a stage names the stage and the micro-batch") {
  const runs::Run run = run_in(alone, {2});
  const std::string error = error_of([&] {
    on_ranks(2, [&](int rank) {
      runs::Trainer trainer(run);
      if (rank == 1) {
        for (nn::Module* const module : nn::all_modules(trainer.model())) {
          if (module->name() == "model.layers.3") {
            module->add_pre_hook([count = 0](nn::Module&, Tensors&) mutable {
              if (count++ == 5) {
                fail("a fault of the test");
              }
            });
          }
        }
      }
      trainer.step();
    });
  });
  INFO(error);
  CHECK(contains(error, "a fault of the test"));
  CHECK(contains(error, "stage 1 (model.layers.3 to lm_head), micro-batch 5, forward"));
}
