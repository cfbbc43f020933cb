module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tessera/printable.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import tessera.sinks;
import tessera.ops;
import tessera.capture;
import tessera.checkpoint;
import tessera.train;

namespace tessera::runs {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// All ranks must have loaded the same plugins: compared before any other collective.
void compare_plugins(collective::World& world) {
  const auto mine = static_cast<std::int64_t>(plugin::host().loaded_hash());
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  world.everyone().all_gather(&mine, all.data(), 1, DType::i64);
  const auto other = std::ranges::find_if(all, [&](std::int64_t hash) { return hash != mine; });
  if (other != all.end()) {
    std::string names;
    for (const plugin::LoadedPlugin& p : plugin::host().loaded()) {
      names += fmt::format(" {} {} ({}, {});", p.name, p.version, p.digest, p.file);
    }
    fail_input(
        {.thing = "plugins",
         .wrong = fmt::format("rank {} and rank {} have loaded different ones", world.rank(),
                              other - all.begin()),
         .advice = fmt::format("this rank has:{} install the same files for all ranks", names)});
  }
}

/// The peaks of what this rank's tensors hold, as the metrics file has them.
std::vector<std::pair<std::string, std::int64_t>> memory_peaks(Device device) {
  const MemoryStatistics memory = memory_statistics(device);
  std::vector<std::pair<std::string, std::int64_t>> peaks = {{"total", memory.total_peak}};
  for (int i = 0; i < memory_category_count; ++i) {
    peaks.emplace_back(name_of(static_cast<MemoryCategory>(i)),
                       memory.peak[static_cast<std::size_t>(i)]);
  }
  return peaks;
}

/// After an interrupt, which has saved the step where there is a place for it.
std::string how_to_continue(const RunSpec& config) {
  return config.checkpoint.folder.empty() ? "nothing is saved, as checkpoint.folder is empty"
         : config.checkpoint.resume == "auto"
             ? "run the same command again to continue"
             : "run the same command with checkpoint.resume=auto to continue";
}

/// Operations per second of matrix products on the machines of all ranks. Of each machine, as many
/// ranks measure at once as its cores have room for: more would measure each other.
double gemm_ceiling(collective::World& world) {
  const int measuring = std::max(1, available_cores() / ops::threads());
  const double mine = world.number_here() < measuring ? ops::measure_gemm(0.02) : 0;
  double ceiling = 0;
  world.everyone().all_reduce(&mine, &ceiling, 1, DType::f64);
  return ceiling * std::min(1.0, static_cast<double>(available_cores()) /
                                     (std::min(measuring, world.ranks_here()) * ops::threads()));
}

/// How long this rank waits for others in steps, and how much of it is because some are slow.
class StepWaits {
 public:
  /// `alike`: see ranks_alike.
  StepWaits(collective::World& world, const std::vector<std::vector<int>>& alike) : world_(world) {
    const auto own = std::ranges::find_if(alike, [&](const std::vector<int>& group) {
      return std::ranges::find(group, world.rank()) != group.end();
    });
    alike_ = own == alike.end() ? std::vector{world.rank()} : *own;
    before_.resize(alike_.size());
  }

  /// Seconds of this rank's waits until now. `step`: the last one that is done.
  double until_now(std::int64_t step) {
    world_.tell_waits(step);
    return world_.waits_of(world_.rank()).seconds;
  }

  /// The share of a rank's waits that ranks alike have not had, since the call before; every rank
  /// has told of its waits.
  double slow_share() {
    double least = std::numeric_limits<double>::infinity();
    double own = 0;
    for (std::size_t i = 0; i < alike_.size(); ++i) {
      const double now = world_.waits_of(alike_[i]).seconds;
      const double waited = now - std::exchange(before_[i], now);
      least = std::min(least, waited);
      own = alike_[i] == world_.rank() ? waited : own;
    }
    return own > 0 ? std::clamp(1 - least / own, 0.0, 1.0) : 0;
  }

 private:
  collective::World& world_;
  std::vector<int> alike_;
  std::vector<double> before_;
};

/// Books from the end of the ranks before these on, where there were some.
TimeLedger ledger_of(const StartPoint& start, const TimeBoard::Entry& before) {
  return before.time > 0 ? TimeLedger(before.time, TimeUse::heal, before.book)
                         : TimeLedger(start.time_begun, TimeUse::start);
}

/// The run of one rank, with its outputs.
class RankRun {
 public:
  /// `step_flops`: of the whole model and batch.
  RankRun(const Run& run, double step_flops, const StartPoint& start, collective::World& world)
      : run_(run),
        step_flops_(step_flops),
        world_(world),
        kept_(start.kept),
        told_(kept_ != nullptr ? kept_->told() : -1),
        board_(start.board),
        before_(board_ != nullptr ? board_->get(world.number_here()) : TimeBoard::Entry()),
        ledger_(ledger_of(start, before_)),
        repeats_to_(std::max(start.told, before_.step)),
        trace_(run.config, to_string(make_mesh(run.config)), start.step, world),
        record_(start.session) {
    ops::set_threads(threads_of_rank(run.config));
    world.set_background(run.config.mesh.background);
    world.set_device_collectives(run.config.mesh.device_collectives);
    world.set_progress(-1, "setting up");
    compare_plugins(world);
    compare_runs(world, run, start);
    const DeviceMesh mesh = make_mesh(run.config);
    set_configured_links(run.config, mesh);
    measure_links(run.config, mesh, world);
    device_ = device_of(run.config, world.number_here(), world.ranks_here());
    kernels_.emplace([&](StepContext& step) { step.planned_device = device_.type; });
    trainer_ = std::make_unique<Trainer>(run, device_);
    trainer_->set_ledger(&ledger_);
    if (start.from_kept) {
      trainer_->resume(*start.kept);
    } else if (start.checkpoint) {
      trainer_->resume(*start.checkpoint);
    }
    if (run.config.graph.capture) {
      const TimeScope captures(&ledger_, TimeUse::capture);
      trainer_->capture_ahead();
      compare_programs(world, trainer_->program());
    }
    const std::string of_record = continue_record();
    identity_ = start.identity;
    begun_at_ = kept_ != nullptr ? start.begun : trainer_->done();
    policy_ = spike_policy(run.config);
    if (world.rank() == 0) {
      listeners_ = listeners_of({.config = run.config,
                                 .identity = identity_,
                                 .begun = begun_at_,
                                 .done = trainer_->done(),
                                 .again = told_ >= 0});
      if (start.checkpoint && !start.from_kept) {
        note(fmt::format("resumed after step {} from {}", trainer_->done(), *start.checkpoint));
      }
      for (const std::string& text : start.notes) {
        note(text);
      }
      if (!of_record.empty()) {
        note(of_record);
      }
      if (world.size() > 1 && run.config.mesh.measure_links) {
        note("links measured: " + links_text(mesh));
      }
    }
    if (world.rank() == 0 && world.size() > 1 && run.config.log.stragglers > 0) {
      stragglers_.emplace(ranks_alike(trainer_->training().plan()), run.config.log.stragglers);
    }
    if (world.size() > 1) {
      waits_.emplace(world, ranks_alike(trainer_->training().plan()));
    }
    checkpoints_.emplace(
        trainer_->checkpoints([this](const std::string& text) { note(text); }, start.kept));
    world.everyone().barrier();
    ceiling_ = gemm_ceiling(world);
    reset_memory_peaks();  // without the measurement's
    span("setup", 0, seconds_since(begun_));
  }

  int operator()() {
    try {
      return take_all();
    } catch (const Error& error) {
      const bool asked = error.kind() == ErrorKind::interrupted;
      finish(asked ? sinks::Outcome::interrupted : sinks::Outcome::failed, error.what());
      throw;
    }
  }

 private:
  int take_all() {
    const std::int64_t steps = run_.config.train.steps;
    ledger_.enter(TimeUse::save);  // what is due before the first step
    const bool stopped =
        take_steps(world_, trainer_->training(), *checkpoints_,
                   {.steps = steps,
                    .step =
                        [&](bool looked_at) {
                          trace_.before_step(trainer_->done());
                          one_step(looked_at);
                        },
                    .goes_back = [&] { return goes_back(); },
                    .is_evaluated = [&](std::int64_t step) { return validates_after(step); },
                    .after_step = [&](bool stop) { after_step(stop); }});
    ledger_.enter(TimeUse::end);
    note_ledger();
    if (stopped) {
      note(fmt::format("interrupted after step {}; {}", trainer_->done(),
                       how_to_continue(run_.config)));
      finish(sinks::Outcome::interrupted);
      return exit_code_of(ErrorKind::interrupted);
    }
    finish(sinks::Outcome::done);
    return incomplete_outputs().empty() ? 0 : incomplete_code;
  }

  /// What follows is a save, if one is due.
  void after_step(bool stop) {
    if (waits_) {
      const double share = waits_->slow_share();
      const double agreeing = waits_->until_now(trainer_->done()) - waited_;
      ledger_.move(TimeUse::compute, TimeUse::communication, agreeing, before_step_);
      ledger_.move(TimeUse::communication, TimeUse::slow_ranks, share * (step_waits_ + agreeing),
                   before_step_);
    }
    if (board_ != nullptr) {
      board_->put(world_.number_here(), {.time = steady_seconds(),
                                         .step = std::max(trainer_->done(), repeats_to_),
                                         .book = ledger_.book()});
    }
    if (trace_.after_step(trainer_->done(), stop)) {
      note("trace written: " + run_.config.trace.file);
    }
    if (stragglers_) {
      stragglers_->watch(world_, trainer_->done());
    }
    write_program();
    const bool ends = stop || trainer_->done() == run_.config.train.steps;
    if (world_.rank() == 0 && (ends || checkpoints_->takes_state_after(trainer_->done()))) {
      trainer_->set_record(record_.text(trainer_->done(), ledger_.book()));
    }
    if (world_.rank() == 0 && ends) {
      listeners_.end_steps();
      if (run_.config.graph.capture) {
        note("steps: " + to_string(trainer_->replays()));
      }
      if (!loads_.empty()) {
        note(loads_text(loads_));
      }
      note("peak memory of rank 0: " + memory_text(memory_statistics(device_)));
    }
    ledger_.enter(TimeUse::save);
  }

  void one_step(bool looked_at) {
    const RunSpec& config = run_.config;
    ledger_.enter(TimeUse::compute);
    before_step_ = ledger_.book();
    const double waits = waits_ ? waits_->until_now(trainer_->done()) : 0;
    const std::int64_t recorded = trainer_->replays().recorded;
    const auto start = std::chrono::steady_clock::now();
    StepResult result;
    run_phase(fmt::format("step {}", trainer_->done() + 1),
              [&] { result = trainer_->step(looked_at); });
    const double seconds = seconds_since(start);
    step_waits_ = waits_ ? waits_->until_now(trainer_->done()) - waits : 0;
    book_step(trainer_->replays().recorded > recorded);
    StepMetrics metrics;
    metrics.step = trainer_->done();
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = result.lr;
    metrics.skipped = result.skipped;
    metrics.spike = trainer_->spike().has_value();
    if (const RowHistory* const history = trainer_->task().history()) {
      metrics.excluded_rows = count_of(history->excluded());
    }
    metrics.seconds = seconds;
    metrics.tokens_per_second = static_cast<double>(config.step_tokens()) / seconds;
    metrics.save_seconds = checkpoints_->seconds();
    span("step", metrics.step, seconds);
    if (metrics.save_seconds > 0) {
      span("save", metrics.step - 1, metrics.save_seconds);
    }
    if (stragglers_ && stragglers_->last()) {
      metrics.waited_for = {stragglers_->last()->rank, stragglers_->last()->seconds};
    }
    metrics.memory_bytes = process_memory().resident;
    metrics.memory_peaks = memory_peaks(device_);
    metrics.measures = trainer_->task().measures(result.measured);
    add_loads(metrics);
    try {
      if (validates_after(trainer_->done()) && !rolls_back()) {
        const TimeScope validates(&ledger_, TimeUse::validation);
        const auto began = std::chrono::steady_clock::now();
        if (std::optional<Validation> validation = trainer_->validate()) {
          span("validation", metrics.step, seconds_since(began));
          metrics.validation_loss = validation->loss;
          metrics.validation_measures = std::move(validation->measures);
        }
        metrics.ledger_ranks = books_of_ranks();
      }
    } catch (...) {
      tell(metrics);  // the step itself was taken
      throw;
    }
    tell(metrics);
    tell_spike(result);
    waited_ = waits_ ? waits_->until_now(trainer_->done()) : 0;
  }

  /// Divides the time of a step, which is booked as computing and reading.
  void book_step(bool recorded) {
    if (trainer_->done() <= repeats_to_) {
      ledger_.move_all(TimeUse::repeated, before_step_);
      step_waits_ = 0;
      return;
    }
    step_waits_ = ledger_.move(TimeUse::compute, TimeUse::communication, step_waits_, before_step_);
    if (recorded) {
      ledger_.move(TimeUse::compute, TimeUse::capture, std::numeric_limits<double>::infinity(),
                   before_step_);
    }
  }

  /// By rank. All ranks call it together.
  std::vector<TimeBook> books_of_ranks() {
    const TimeBook own = ledger_.book();
    std::vector<TimeBook> all(static_cast<std::size_t>(world_.size()));
    std::vector<double> seconds(all.size() * time_use_count);
    world_.everyone().all_gather(own.seconds.data(), seconds.data(), time_use_count, DType::f64);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      std::copy_n(seconds.begin() + static_cast<std::ptrdiff_t>(rank * time_use_count),
                  time_use_count, all[rank].seconds.begin());
    }
    return all;
  }

  /// All ranks call it together.
  void note_ledger() {
    for (const std::string& line : ledger_lines(books_of_ranks())) {
      note(line);
    }
  }

  /// Whether the run goes back because of the last step.
  bool rolls_back() const {
    return trainer_->spike() && policy_ && policy_->action == SpikeAction::rollback;
  }

  /// Names the rows of a step that is far from those before it. Error: the run is to end then.
  void tell_spike(const StepResult& result) {
    if (!trainer_->spike() || (world_.rank() != 0 && policy_->action != SpikeAction::stop)) {
      return;
    }
    const Spike& spike = *trainer_->spike();
    RowHistory* const history = trainer_->task().history();
    const std::string rows = history == nullptr
                                 ? "not known, as the program has a task of its own"
                                 : places_text(places_of_step(*history, trainer_->done() - 1));
    const std::string what = fmt::format(
        "step {}: {} {:.4g} is far above the {:.4g} of the steps before (spread {:.3g}); its rows: "
        "{}",
        trainer_->done(), spike.name == "loss" ? "the loss" : "the gradient norm",
        printable(spike.value), printable(spike.usual), printable(spike.spread), rows);
    if (policy_->action == SpikeAction::stop) {
      fail({.thing = "train.on_spike",
            .wrong = what,
            .advice = "'tessera replay' computes the step again; leave rows out by data.exclude"});
    }
    note(what + (result.refused && !rolls_back() ? "; its update was left out" : ""));
  }

  /// After a step that was refused: from the last checkpoint on, without the step's rows.
  bool goes_back() {
    if (!rolls_back()) {
      return false;
    }
    constexpr int most = 20;
    const TimeScope heals(&ledger_, TimeUse::heal);
    const std::int64_t from = trainer_->done();
    repeats_to_ = std::max(repeats_to_, from);
    checkpoints_->after_error();  // a save that is running may be the last checkpoint
    world_.everyone().barrier();
    const std::optional<std::string> last = latest_checkpoint(run_.config.checkpoint.folder);
    if (!last || ++rollbacks_ > most) {
      fail({.thing = "train.on_spike",
            .wrong = last
                         ? fmt::format("the run went back {} times", most)
                         : fmt::format("there is no checkpoint before step {} to go back to", from),
            .advice = last ? "look at the learning rate, or set action = \"warn\""
                           : "save one earlier by checkpoint.every"});
    }
    const std::vector<std::vector<std::string>> rows = trainer_->roll_back(*last);
    continue_record();
    if (world_.rank() == 0) {
      told_ = std::max(told_, from);
      listeners_ = RunListeners();  // they close their files
      listeners_ = listeners_of({.config = run_.config,
                                 .identity = identity_,
                                 .begun = begun_at_,
                                 .done = trainer_->done(),
                                 .again = true});
    }
    note(fmt::format("back to step {} ({}); from there on the rows of step {} are left out: {}",
                     trainer_->done(), *last, from, places_text(rows)));
    world_.everyone().barrier();
    return true;
  }

  /// The metrics file has the lines of the steps that are done, so the next line has all that was
  /// booked since. Returns what to tell.
  std::string continue_record() {
    const std::string told = record_.continue_from(trainer_->record(), trainer_->done());
    booked_ = record_.saved_ledger();
    return told;
  }

  void add_loads(StepMetrics& metrics) {
    loads_ = trainer_->expert_loads(world_);
    if (loads_.empty()) {
      return;
    }
    metrics.measures.emplace_back("experts/largest", largest_load(loads_));
    if (run_.config.experts.capacity > 0) {
      metrics.measures.emplace_back("experts/dropped", dropped_share(loads_));
    }
    for (const LayerLoads& one : loads_) {
      metrics.expert_tokens.emplace_back(one.layer, one.tokens);
    }
  }

  /// What ranks that died have told of a step is not told again, but for files: these begin where
  /// the run continues.
  void tell(StepMetrics& metrics) {
    if (world_.rank() != 0) {
      return;
    }
    // What after_step() has taken from a use since, the next lines have less of.
    const TimeBook now = ledger_.book() - booked_;
    for (std::size_t i = 0; i < time_use_count; ++i) {
      metrics.ledger.seconds[i] = std::max(0.0, now.seconds[i]);
    }
    booked_ += metrics.ledger;
    record_.step(metrics);
    listeners_.step({.metrics = metrics,
                     .gemm_share = step_flops_ / metrics.seconds / ceiling_,
                     .again = metrics.step <= told_});
    if (kept_ != nullptr) {
      kept_->set_told(metrics.step);
    }
  }

  bool validates_after(std::int64_t step) const {
    const std::int64_t every = run_.config.data.validate_every;
    return step == run_.config.train.steps || (every > 0 && step % every == 0);
  }

  /// As soon as there is one.
  void write_program() {
    const std::string& path = run_.config.graph.program;
    const std::string text =
        path.empty() || program_tried_ ? std::string() : trainer_->program_text();
    if (text.empty()) {
      return;
    }
    const std::string own = world_.rank() == 0 ? path : fmt::format("{}.{}", path, world_.rank());
    const bool written = try_side_work(SideWork::output, "graph.program", [&] {
      make_folders(std::filesystem::absolute(own).parent_path().string(), "graph.program");
      write_output("graph.program", own, text);
    });
    if (written) {
      note("program written: " + path);
    }
    program_tried_ = true;
  }

  // Of other ranks nobody hears.
  void note(const std::string& text) { listeners_.note(text); }
  void span(const char* name, std::int64_t step, double seconds) {
    if (step == 0 || step > told_) {
      listeners_.span({.name = name, .step = step, .seconds = seconds});
    }
  }
  void finish(sinks::Outcome outcome, const std::string& error = {}) {
    listeners_.finish({.outcome = outcome, .step = trainer_->done(), .text = error});
  }

  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const Run& run_;
  double step_flops_;
  collective::World& world_;
  MemoryStateStore* kept_;   // null: no state is kept in memory
  std::int64_t told_;        // the last step that ranks before these have told
  TimeBoard* board_;         // null: the run does not heal
  TimeBoard::Entry before_;  // what the rank in this one's place has booked
  TimeLedger ledger_;
  TimeBook booked_;                 // what the metrics have
  std::int64_t repeats_to_;         // steps up to this one had been taken before
  TimeBook before_step_ = {};       // what was booked before the step that is being taken
  double waited_ = 0;               // seconds for which this rank has waited, after it
  double step_waits_ = 0;           // seconds of it
  std::optional<StepWaits> waits_;  // none: the rank is alone
  Device device_ = cpu;
  std::optional<StepScope> kernels_;  // those that are planned for
  std::unique_ptr<Trainer> trainer_;
  std::optional<RunCheckpoints> checkpoints_;
  RunListeners listeners_;                // none, but for rank 0
  std::optional<Stragglers> stragglers_;  // rank 0's
  TraceSteps trace_;
  RecordWriter record_;
  double ceiling_ = 1;
  bool program_tried_ = false;
  std::vector<LayerLoads> loads_;  // of the last step
  std::optional<SpikePolicy> policy_;
  int rollbacks_ = 0;
  std::string identity_;       // of the run, for listeners
  std::int64_t begun_at_ = 0;  // steps that were done then
};

}  // namespace

int train_rank(const Run& run, double step_flops, const StartPoint& start,
               collective::World& world) {
  return RankRun(run, step_flops, start, world)();
}

}  // namespace tessera::runs
