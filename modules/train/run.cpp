module;
#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
module tessera.train;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.device;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;

namespace tessera {
namespace {

void check(const TrainingRun& run) {
  const auto at_least = [](const char* what, std::int64_t least, std::int64_t got) {
    if (got < least) {
      fail_input({.thing = "run_training",
                  .wrong = fmt::format("{} is too small", what),
                  .expected = fmt::format("at least {}", least),
                  .got = fmt::format("{}", got)});
    }
  };
  at_least("ranks", 1, run.ranks);
  at_least("steps", 1, run.steps);
  at_least("rows", 1, run.rows);
  at_least("row_tokens", 1, run.row_tokens);
  at_least("save_every", 0, run.save_every);
  at_least("keep", 0, run.keep);
  at_least("report_every", 0, run.report_every);
  if (!(run.straggler_share >= 0)) {
    fail_input({.thing = "run_training",
                .wrong = "straggler_share is negative",
                .expected = "at least 0",
                .got = fmt::format("{}", run.straggler_share)});
  }
  if (!run.model || !run.data || !run.loss_sum) {
    fail_input("run_training: it needs a model, data and loss_sum");
  }
}

/// The training of one rank. On the meta device nothing is allocated, and steps use no values.
class RankTraining {
 public:
  RankTraining(const TrainingRun& run, int ranks, Device device)
      : run_(run), device_(device), model_(run.model()) {
    require(model_ != nullptr, "run_training: model() returned nothing");
    model_->set_names();
    set_seed(run.seed);
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {ranks});
    sharded_.emplace(*model_, mesh, run.sharding, plugin::host());
    if (!(device == meta)) {
      sharded_->materialize();
      nn::initialize(*model_);
    }
    auto parameters = nn::all_parameters(*model_);
    training_.emplace(
        *model_, sharded_->plan(),
        run.optimizer ? run.optimizer(std::move(parameters)) : optim::adamw(std::move(parameters)),
        run.schedule, run.max_norm);
    training_->captured().set_enabled(run.replay,
                                      device == meta ? graph::ExecutionOptions() : run.execution);
  }

  Training& training() { return *training_; }

  /// `last`: see StepBatch::last_train_step.
  StepResult step(bool last = false) {
    const std::int64_t tokens = run_.rows * run_.row_tokens;
    return training_->step(
        {.rows = run_.rows,
         .micro_rows = run_.micro_rows,
         .weight = static_cast<double>(tokens),
         .tokens = tokens,
         .last_train_step = last},
        StepFunctions{
            .rows = [&](const BatchPart& part) { return rows(part); },
            .loss_sum =
                [&](const Tensors& rows) { return run_.loss_sum(*model_, distributed(rows)); },
            .guards = run_.guards ? run_.guards(training_->done()) : StepGuards()});
  }

 private:
  Tensors rows(const BatchPart& part) const {
    // The first rows have the shapes of all; nothing else of them is used on the meta device.
    Tensors rows =
        run_.data(device_ == meta ? BatchPart{.first = part.first, .rows = part.rows} : part);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Tensor& x = rows[i];
      if (!x || x.is_distributed() || x.shape().empty() || x.shape()[0] != part.rows) {
        fail({.thing = "run_training",
              .wrong =
                  fmt::format("tensor {} of data() does not have the rows that were asked for", i),
              .expected = fmt::format("a plain tensor whose dim 0 is {}", part.rows),
              .got = !x                   ? std::string("no tensor")
                     : x.is_distributed() ? to_string(*x.spec())
                                          : to_string(x.shape()),
              .advice = "return rows part.first to part.first + part.rows - 1"});
      }
      rows[i] = device_ == meta ? empty(x.shape(), x.dtype(), meta) : x;
    }
    return rows;
  }

  /// The ranks' rows as one tensor each.
  Tensors distributed(const Tensors& rows) {
    const std::int64_t all =
        run_.micro_rows == 0 ? run_.rows : run_.micro_rows * sharded_->plan().batch_parts();
    Tensors whole;
    for (const Tensor& part : rows) {
      Dims shape = part.shape();
      shape[0] = all;
      whole.push_back(from_local(part, sharded_->batch_layout(), shape));
    }
    return whole;
  }

  const TrainingRun& run_;
  Device device_;
  std::shared_ptr<nn::Module> model_;
  std::optional<parallel::FullySharded> sharded_;
  std::optional<Training> training_;
};

/// For people: a line of rank 0.
void say(const collective::World& world, const std::string& line) {
  if (world.rank() == 0) {
    try_side_work(SideWork::output, "stdout", [&] {
      errno = 0;
      if ((std::fputs((line + "\n").c_str(), stdout) < 0 || std::fflush(stdout) != 0) &&
          errno != EPIPE) {  // that is a request to stop
        fail({.thing = "stdout", .wrong = "it cannot be written"});
      }
    });
  }
}

/// One rank of the run; its exit code.
int train_rank(const TrainingRun& run, collective::World& world) {
  RankTraining mine(run, world.size(), cpu);
  Training& training = mine.training();
  RunCheckpoints checkpoints(training, SaveSchedule{.folder = run.folder,
                                                    .every = run.save_every,
                                                    .keep = run.keep,
                                                    .background = run.save_in_background});
  if (!run.folder.empty() && training.checkpoints().resume(run.folder)) {
    say(world, fmt::format("continues after step {}", training.done()));
  }
  if (run.replay && training.done() < run.steps) {
    training.captured().capture_ahead([&] {
      RankTraining ahead(run, world.size(), meta);
      return ahead.training().captured().capture([&] { ahead.step(); });
    });
  }
  std::optional<Stragglers> stragglers;
  if (world.rank() == 0 && world.size() > 1 && run.straggler_share > 0) {
    stragglers.emplace(ranks_alike(training.plan()), run.straggler_share);
  }
  double loss = 0;
  const bool stopped =
      take_steps(world, training, checkpoints,
                 {.steps = run.steps,
                  .step = [&](bool looked_at) { loss = mine.step(looked_at).loss; },
                  .after_step =
                      [&](bool) {
                        if (stragglers) {
                          stragglers->watch(world, training.done());
                        }
                        if (run.report_every > 0 && training.done() % run.report_every == 0) {
                          say(world, fmt::format("step {:4}  loss {:.6f}", training.done(), loss));
                        }
                      }});
  if (training.captured().counts().captured > 1 && run.report_every > 0) {
    say(world, "steps: " + to_string(training.captured().counts()));
  }
  return stopped ? exit_code_of(ErrorKind::interrupted) : incomplete_outputs().empty() ? 0 : 1;
}

}  // namespace

int run_training(const TrainingRun& run) {
  try {
    check(run);
    const auto rank_run = [&](collective::World& world) { return train_rank(run, world); };
    return collective::launched_by_other()
               ? collective::join_launch({.ranks = 0}, rank_run)
               : collective::launch({.ranks = run.ranks, .place = collective::launcher_place()},
                                    rank_run);
  } catch (const collective::PeerFailed& error) {
    return exit_code_of(error.kind());
  } catch (const Error& error) {
    collective::report_refusal(error.what(), error.kind(),
                               [&] { fmt::print(stderr, "error: {}\n", error.what()); });
    return exit_code_of(error.kind());
  }
}

}  // namespace tessera
