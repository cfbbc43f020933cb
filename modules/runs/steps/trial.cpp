module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.passes;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.hub;

namespace tessera::runs {
namespace {

/// Parameters, which exist before the first step.
void book_parameters(nn::Module& model) {
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    if (parameter->attached<nn::MemoryPlaces>().value) {
      continue;
    }
    const Tensor& local = parameter->value.local();
    account_memory(
        MemoryCategory::parameter,
        occupied_bytes(static_cast<std::size_t>(local.numel()) * size_of(local.dtype())));
  }
}

/// Notes whether there are products of local parts, of which no call has global shapes.
class LocalProducts final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    found_ =
        found_ || (call.op.flops != nullptr && std::ranges::none_of(call.in, [](const Tensor& x) {
                     return x && x.is_distributed();
                   }));
    return out;
  }
  bool found() const { return found_; }

 private:
  bool found_ = false;
};

/// Refuses operators whose bits depend on how many ranks share the features of the model: products
/// that are not computed in blocks, and sums over what ranks share. What ranks split of the batch
/// is whole virtual shards, so nothing needs to be known of operators there.
class FeatureSums final : public Mode {
 public:
  explicit FeatureSums(const parallel::ParallelPlan& plan) : plan_(plan) {}

  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    for (int axis = 0; axis < plan_.mesh().ndim(); ++axis) {
      const bool of_batch = std::ranges::find(plan_.batch_axes(), axis) != plan_.batch_axes().end();
      if (!of_batch && plan_.mesh().axis_size(axis) > 1) {
        check(call, out, axis);
      }
    }
    return out;
  }

 private:
  template <class Tensors>
  bool any(const Tensors& tensors, int axis, bool (Placement::*is)() const) const {
    return std::ranges::any_of(tensors, [&](const Tensor& x) {
      return x && x.is_distributed() && x.layout().mesh() == plan_.mesh() &&
             (x.layout().placement(axis).*is)();
    });
  }

  void check(const Call& call, const Tensors& out, int axis) const {
    if (!any(call.in, axis, &Placement::is_shard)) {
      return;
    }
    const bool adds =
        any(out, axis, &Placement::is_partial) && !any(call.in, axis, &Placement::is_partial);
    const bool joins = !any(out, axis, &Placement::is_shard) &&
                       !any(out, axis, &Placement::is_partial) && call.op.composed != nullptr;
    const bool multiplies = call.op.flops != nullptr;
    if (!call.op.same_bits_by_features && (adds || joins || multiplies)) {
      fail_input({.thing = call.op.name,
                  .wrong = fmt::format("its bits depend on how many ranks of axis '{}' share its "
                                       "operands, which train.reproducible=layout does not allow",
                                       plan_.mesh().axis_name(axis)),
                  .advice = "take the styles that split this module out of the config"});
    }
  }

  const parallel::ParallelPlan& plan_;
};

/// The step with all of its styles on one rank, or one for each place of stages: what is local
/// there is global. `stages`: their axis; -1: none.
StepSetup shrunk(const StepSetup& setup, int stages) {
  StepSetup one = setup;
  const std::span<const std::string> axes = setup.mesh.axis_names();
  Dims shape = Dims::filled(setup.mesh.ndim(), 1);
  if (stages >= 0) {
    shape[stages] = setup.mesh.axis_size(stages);
  }
  one.mesh = DeviceMesh::make({axes.begin(), axes.end()}, shape);
  one.rows.micro = 0;
  return one;
}

/// The ranks over which the batch is divided. Error (input): equal parts are needed, and there are
/// none.
std::int64_t parts_of_batch(const Run& run, const parallel::ParallelPlan& plan) {
  if (!run.task->divides_unevenly() || run.config.train.micro_batch > 0 ||
      plan.sequence_parts() > 1) {
    check_batch_division(run.config, plan.batch_parts());
  }
  return plan.batch_parts();
}

/// A step that a mode has placed. What it computes is that of one rank.
Trial try_placed(const Run& run, Trainer& trainer) {
  check_batch_division(run.config, trainer.plan().batch_parts());
  Trial trial = try_step(run, one_rank_setup(run));
  const double model_flops = trial.account.model_flops;
  MetaReads reads;
  const ModeScope scope(ModeLevel::below_distribution, reads);
  const PlannedMemoryScope planned;
  trainer.capture_ahead();
  trial.account = Account();
  {
    const AccountScope counted(trial.account);
    trainer.step();
  }
  add_program(trial.account, *trainer.program(), trainer.mesh());
  const auto snapshot = static_cast<std::int64_t>(trainer.snapshot_bytes());
  trial.account.memory.peak[static_cast<std::size_t>(MemoryCategory::snapshot)] += snapshot;
  trial.account.memory.total_peak += snapshot;
  trial.account.model_flops = model_flops;
  trial.shared_bytes = trainer.shared_bytes();
  trial.bytes_elsewhere = trainer.bytes_elsewhere();
  trial.kept_bytes = trainer.kept_bytes();
  trial.styles = {};
  return trial;
}

/// Parameters of the model, and what the training stores for them.
void count_parameters(Trainer& trainer, Trial& trial) {
  const parallel::Stages* const stages = trainer.plan().stages();
  for (const nn::ParameterPointer& parameter : nn::all_parameters(trainer.model())) {
    if (stages != nullptr && stages->is_copy(*parameter)) {
      continue;
    }
    // Codes and scales are counted as the weights that they are.
    const bool packed = parameter->initialization.kind == nn::Initialization::Kind::packed;
    const std::int64_t elements = packed ? 0 : parameter->value.numel();
    trial.parameters += elements;
    trial.frozen_parameters += parameter->value.requires_grad() ? 0 : elements;
    if (parameter->value.requires_grad()) {
      const Tensor& part = local_of(parameter->value);
      const auto bytes = part.numel() * static_cast<std::int64_t>(size_of(part.dtype()));
      trial.stored.elements += part.numel();
      trial.stored.values += bytes;
      trial.stored.gradients += bytes;  // of the parameter's type
    }
  }
  trial.stored.state = static_cast<std::int64_t>(trainer.state_bytes());
  for (const nn::Module* module : nn::all_modules(trainer.model())) {
    for (const nn::PackedWeight& weight : nn::packed_weights_of(*module)) {
      trial.parameters += weight.shape.product();
      trial.frozen_parameters += weight.shape.product();
    }
  }
}

/// The stages of the calling rank.
std::string text_of_own(const parallel::Stages& stages) {
  std::string text;
  for (const int stage : stages.own()) {
    text += (text.empty() ? "" : ", ") + stages.text(stage);
  }
  return text;
}

/// The ranks along the axis of stages through the calling rank, and the axis.
struct StageRanks {
  std::vector<int> ranks = {};
  int axis = -1;
};

/// `local_products`: whether products of local parts were found.
Trial try_steps(const Run& run, StepSetup setup, bool& local_products, StageRanks& places) {
  const StepScope kernels(
      [&](StepContext& step) { step.planned_device = device_of(run.config, 0, 1).type; });
  ops::set_threads(threads_of_rank(run.config));  // the workspace of kernels depends on them
  if (setup.by_mode) {
    setup.execution.executor = "interpreter";  // modes see its calls
    setup.execution.transforms.clear();
  }
  Trainer trainer(run, setup);
  if (setup.by_mode) {
    return try_placed(run, trainer);
  }
  trainer.set_capture(false);  // it was only to be checked
  const std::int64_t parts = parts_of_batch(run, trainer.plan());
  const std::int64_t share = (setup.rows.all + parts - 1) / parts;  // of a rank
  const std::int64_t micro = setup.rows.micro > 0 ? setup.rows.micro : share;
  const std::int64_t micro_batches = (share + micro - 1) / micro;
  const auto step = [&](std::int64_t with) {
    Account account;
    try {
      const AccountScope scope(account);
      trainer.step(
          {.all = std::min(parts * micro * with, setup.rows.all), .micro = setup.rows.micro});
    } catch (const Error& error) {
      throw trainer.plan().explained(error);
    }
    return account;
  };
  MetaReads reads;
  const ModeScope scope(ModeLevel::below_distribution, reads);
  const PlannedMemoryScope planned;
  book_parameters(trainer.model());
  if (trainer.task().frozen_copy() != nullptr) {
    book_parameters(trainer.task().frozen_copy()->model());
  }
  // The first step makes what stays: the optimizer's state and buffers. Micro-batches between the
  // first and the last are alike, but for those of a tree, whose sums wait for others.
  const parallel::Stages* const stages = trainer.plan().stages();
  const bool alike = stages == nullptr && !run.config.train.is_layout_free();
  const std::int64_t few = alike ? std::min<std::int64_t>(micro_batches, 2) : micro_batches;
  static_cast<void>(step(few));
  account_memory(MemoryCategory::snapshot, static_cast<std::int64_t>(trainer.snapshot_bytes()));
  Trial trial;
  LocalProducts local;
  KernelSearch kernels_of_step;
  {
    const ModeScope watched(ModeLevel::above_distribution, local);
    const ModeScope searched(ModeLevel::below_distribution, kernels_of_step);
    std::optional<FeatureSums> sums;
    std::optional<ModeScope> refused;
    if (run.config.train.is_layout_free()) {
      sums.emplace(trainer.plan());
      refused.emplace(ModeLevel::above_distribution, *sums);
    }
    trial.account = step(few);
  }
  local_products = local_products || local.found();
  trial.missing_kernels = kernels_of_step.missing();
  if (micro_batches > few) {
    const Account more = step(few + 1);
    const Account less = trial.account;
    trial.account.add(more, micro_batches - few);
    trial.account.add(less, few - micro_batches);
    trial.account.memory = more.memory;
  }
  if (stages != nullptr) {
    places = {stages->group().group->ranks, stages->axis()};
    trial.places.push_back({current_rank(), text_of_own(*stages), trial.account.memory});
  }
  trial.rows = micro_batches * micro;
  trial.micro = micro;
  trial.parts = parts;
  trial.shared_bytes = trainer.shared_bytes();
  trial.bytes_elsewhere = trainer.bytes_elsewhere();
  trial.kept_bytes = trainer.kept_bytes();
  trial.styles = trainer.plan().summary();
  trial.objective = trainer.task().text();
  count_parameters(trainer, trial);
  return trial;
}

/// The program of a step as it is recorded, with replaced modules.
Program record_steps(const Run& run, StepSetup setup) {
  ops::set_threads(threads_of_rank(run.config));
  const std::vector<graph::Change> replacing = replacing_changes(run.config.graph);
  setup.captured = true;
  setup.execution.transforms.clear();        // they change the program, once it is there
  setup.execution.executor = "interpreter";  // nothing is executed, so nothing is compiled
  if (setup.execution.memory_budget == 0) {
    setup.execution.across_steps = false;  // it is split where that is looked at
  }
  // It writes what is known into them, as other captures may do at the same time.
  setup.states = setup.states ? std::make_shared<StageStates>(*setup.states) : nullptr;
  Trainer trainer(run, setup, replacing);
  parts_of_batch(run, trainer.plan());
  if (trainer.plan().stages() != nullptr && !setup.states) {
    setup.states = stage_states(run, setup);
    return record_steps(run, setup);
  }
  Program program;
  try {
    trainer.capture();
    program = *trainer.program();
  } catch (const Error& error) {
    // Without replaced modules, the trial has found what styles do.
    throw replacing.empty() || trainer.plan().styles().empty() ? error
                                                               : trainer.plan().explained(error);
  }
  if (!replacing.empty()) {
    Trainer(run, setup).check_inputs(trainer);
  }
  return program;
}

/// Adds the trial of ranks with other stages.
void add_place(Trial& all, Trial one) {
  const double model_flops = all.account.model_flops + one.account.model_flops;
  if (one.account.memory.total_peak > all.account.memory.total_peak) {
    std::swap(all.account, one.account);
    std::swap(all.stored, one.stored);
  }
  all.account.model_flops = model_flops;
  all.places.insert(all.places.end(), one.places.begin(), one.places.end());
  all.shared_bytes = std::max(all.shared_bytes, one.shared_bytes);
  all.bytes_elsewhere = std::max(all.bytes_elsewhere, one.bytes_elsewhere);
  all.parameters += one.parameters;
  all.frozen_parameters += one.frozen_parameters;
  if (all.missing_kernels.empty()) {
    all.missing_kernels = std::move(one.missing_kernels);
  }
  for (std::size_t i = 0; i < all.styles.size(); ++i) {
    parallel::StyleSummary& style = all.styles[i];
    if (style.decided.empty()) {
      style.decided = std::move(one.styles[i].decided);
    }
    if (!style.divides_model) {
      style.modules += one.styles[i].modules;
      style.parameters += one.styles[i].parameters;
      std::erase_if(style.unused, [&](const std::string& option) {
        return std::ranges::find(one.styles[i].unused, option) == one.styles[i].unused.end();
      });
    }
  }
}

}  // namespace

std::shared_ptr<StageStates> stage_states(const Run& run, StepSetup setup) {
  const std::vector<graph::Change> replacing = replacing_changes(run.config.graph);
  setup.captured = false;
  setup.states = std::make_shared<StageStates>();
  std::vector<int> ranks = {0};  // one of each place
  do {
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      on_meta(ranks[place], [&] {
        Trainer trainer(run, setup, replacing);
        if (const parallel::Stages* const stages = trainer.plan().stages()) {
          ranks = stages->group().group->ranks;
          trainer.step();
        } else {
          setup.states = nullptr;
        }
      });
    }
  } while (setup.states && !setup.states->exact());
  return setup.states;
}

double host_seconds(Trainer& trainer) {
  constexpr int rounds = 5;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    least = std::min(least, seconds_of([&] { trainer.step(); }));
  }
  return least;
}

double host_seconds(const Run& run, StepSetup setup) {
  setup.captured = false;
  double seconds = 0;
  on_meta(0, [&] {
    Trainer trainer(run, setup);
    trainer.step();  // makes what stays
    seconds = host_seconds(trainer);
  });
  return seconds;
}

void capture_evaluation(const Run& run, const StepSetup& setup, OneRank& into) {
  as_rank(0, [&] {
    ops::set_threads(threads_of_rank(run.config));
    Trainer trainer(run, setup);
    const PlannedMemoryScope planned;
    trainer.record_evaluation(into);
  });
}

Program capture_step(const Run& run, int rank) {
  StepSetup setup = setup_of(run);
  if (rank != 0) {
    setup.execution.kept_gathers = kept_gathers(run);
  }
  return capture_step(run, setup, rank);
}

Program capture_step(const Run& run, const StepSetup& setup, int rank) {
  Program program;
  on_meta(rank, [&] {
    program = record_steps(run, setup);
    graph::AddedState added;
    graph::transform(program, setup.execution, added);
  });
  return program;
}

Program recorded_step(const Run& run, const StepSetup& wanted, int rank) {
  StepSetup setup = wanted;
  setup.execution.across_steps = false;
  setup.execution.passes = {};
  setup.execution.memory_budget = 0;
  setup.execution.elsewhere = nullptr;
  Program program;
  on_meta(rank, [&] { program = record_steps(run, setup); });
  return program;
}

Program lowered(const Program& placed, int rank) {
  Program program;
  as_rank(rank, [&] { program = lower(placed); });
  return program;
}

Program capture_part(const Run& run, int rank, const std::string& part) {
  Program program = capture_step(run, rank);
  if (part.empty()) {
    return program;
  }
  graph::AcrossSteps parts =
      graph::across_steps(program, execution_of(run.config.graph, run.rates));
  return std::move(part == "first"    ? parts.first
                   : part == "middle" ? parts.middle
                   : part == "last"   ? parts.last
                                      : parts.update);
}

int gathers_in(const Program& program) {
  int count = 0;
  for (const Section& section : program.sections) {
    count += static_cast<int>(std::ranges::count_if(section.instructions, [](const auto& i) {
      return i.kind == Instruction::Kind::call &&
             i.op->communicates == collective::CallKind::all_gather;
    }));
  }
  return count;
}

bool keeps_gathers(const GraphConfig& graph) {
  return graph::without_keeping(graph.passes).size() < graph.passes.size();
}

int kept_gathers(const Run& run, const Program& program) {
  StepSetup without = setup_of(run);
  without.execution.passes = graph::without_keeping(without.execution.passes);
  return gathers_in(capture_step(run, without)) - gathers_in(program);
}

int kept_gathers(const Run& run) {
  const GraphConfig& graph = run.config.graph;
  const bool fits = graph.capture && !graph.memory_budget.empty() && keeps_gathers(graph);
  return !fits || run.kept_gathers >= 0 ? run.kept_gathers : kept_gathers(run, capture_step(run));
}

Trial try_step(const Run& run) { return try_step(run, setup_of(run)); }

Trial try_step(const Run& run, const StepSetup& setup) {
  // The ranks that are forked afterwards would inherit what it leaves on this thread.
  Trial trial;
  bool local_products = false;
  StageRanks places;
  StepSetup all = setup;
  all.states = std::make_shared<StageStates>();
  as_rank(0, [&] { trial = try_steps(run, all, local_products, places); });
  for (std::size_t place = 1; place < places.ranks.size(); ++place) {
    StageRanks same;
    as_rank(places.ranks[place],
            [&] { add_place(trial, try_steps(run, all, local_products, same)); });
  }
  std::ranges::for_each(trial.styles, parallel::refuse_unused);
  const std::ptrdiff_t shared_by_stages = std::max<std::ptrdiff_t>(std::ssize(places.ranks), 1);
  if (local_products && setup.mesh.size() > shared_by_stages) {
    trial.account.model_flops = try_step(run, shrunk(setup, places.axis)).account.model_flops;
  }
  return trial;
}

}  // namespace tessera::runs
