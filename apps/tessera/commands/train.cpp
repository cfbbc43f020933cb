module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;
import tessera.app.generation;
import tessera.app.trace;
import tessera.app.run;
import :named_plugins;

namespace tessera::app {
namespace {

constexpr int interrupted = 130;
constexpr int incomplete = 3;  // a rank's: it has done its steps, and not all of its other outputs

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void configure_plugins(const Config& config, const TrainArguments& arguments) {
  std::vector<std::string> paths = arguments.plugins;
  paths.insert(paths.end(), config.plugins.paths.begin(), config.plugins.paths.end());
  try {
    use_plugins(std::move(paths));
  } catch (const Error& error) {
    const bool from_config =
        std::ranges::any_of(config.plugins.paths, [&](const std::string& path) {
          return error.fields().thing.find(path) != std::string::npos;
        });
    if (!from_config) {
      throw;
    }
    at_key(config, "plugins.paths", [&] { throw Error(error); });
  }
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
std::vector<std::pair<std::string, std::int64_t>> memory_peaks() {
  const MemoryStatistics memory = memory_statistics();
  std::vector<std::pair<std::string, std::int64_t>> peaks = {{"total", memory.total_peak}};
  for (int i = 0; i < memory_category_count; ++i) {
    peaks.emplace_back(name_of(static_cast<MemoryCategory>(i)),
                       memory.peak[static_cast<std::size_t>(i)]);
  }
  return peaks;
}

/// After an interrupt, which has saved the step where there is a place for it.
std::string how_to_continue(const Config& config) {
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

/// What a rank does.
class RankRun {
 public:
  /// `step_flops`: of the whole model and batch.
  RankRun(const Run& run, double step_flops, const StartPoint& start, collective::World& world)
      : run_(run),
        step_flops_(step_flops),
        world_(world),
        trace_(run.config, to_string(make_mesh(run.config)), start.step, world) {
    ops::set_threads(threads_of_rank(run.config));
    world.set_background(run.config.mesh.background);
    world.set_progress(-1, "setting up");
    compare_plugins(world);
    compare_runs(world, run, start);
    const DeviceMesh mesh = make_mesh(run.config);
    set_configured_links(run.config, mesh);
    measure_links(run.config, mesh, world);
    device_ = device_of(run.config, world.rank());
    trainer_ = std::make_unique<Trainer>(run, device_);
    if (start.checkpoint) {
      trainer_->resume(*start.checkpoint);
    }
    if (run.config.graph.capture) {
      trainer_->capture_ahead();
      compare_programs(world, trainer_->program());
    }
    if (world.rank() == 0) {
      if (!run.config.log.metrics.empty()) {
        metrics_ = std::make_unique<MetricsWriter>(run.config.log.metrics, trainer_->done());
        owner_ = metrics_owner(run.config.log.metrics, run.config.checkpoint.folder);
      }
      progress_ = std::make_unique<Progress>(trainer_->done(), run.config.train.steps,
                                             run.config.log.every);
      if (start.checkpoint) {
        progress_->note(
            fmt::format("resumed after step {} from {}", trainer_->done(), *start.checkpoint));
      }
      for (const std::string& text : start.notes) {
        progress_->note(text);
      }
      if (world.size() > 1 && run.config.mesh.measure_links) {
        progress_->note("links measured: " + links_text(mesh));
      }
    }
    checkpoints_.emplace(trainer_->checkpoints([this](const std::string& text) { note(text); }));
    world.everyone().barrier();
    ceiling_ = gemm_ceiling(world);
    reset_memory_peaks();  // without the measurement's
  }

  int operator()() {
    try {
      return train();
    } catch (...) {
      checkpoints_->after_error();
      throw;
    }
  }

 private:
  int train() {
    const TrainConfig& train = run_.config.train;
    while (trainer_->done() < train.steps) {
      world_.set_progress(trainer_->done() + 1, "training");
      trace_.before_step(trainer_->done());
      one_step();
      const bool stop = world_.interrupt_agreed();
      if (trace_.after_step(trainer_->done(), stop)) {
        note("trace written: " + run_.config.trace.file);
      }
      write_program();
      if (progress_ && (stop || trainer_->done() == train.steps)) {
        progress_->finish();  // no further step: notes come below its line
        if (run_.config.graph.capture) {
          note("steps: " + to_string(trainer_->replays()));
        }
        note("peak memory of rank 0: " + memory_text(memory_statistics(device_)));
      }
      checkpoints_->after_step(stop || trainer_->done() == train.steps);
      if (stop) {
        note(fmt::format("interrupted after step {}; {}", trainer_->done(),
                         how_to_continue(run_.config)));
        return interrupted;
      }
    }
    if (metrics_) {
      try_side_work(SideWork::output, "metrics", [&] { metrics_->finish(); });
    }
    return incomplete_outputs().empty() ? 0 : incomplete;
  }

  void one_step() {
    const Config& config = run_.config;
    const auto start = std::chrono::steady_clock::now();
    StepResult result;
    run_phase(fmt::format("step {}", trainer_->done() + 1),
              [&] { result = trainer_->step(is_looked_at(trainer_->done() + 1)); });
    const double seconds = seconds_since(start);
    StepMetrics metrics;
    metrics.step = trainer_->done();
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = result.lr;
    metrics.skipped = result.skipped;
    metrics.seconds = seconds;
    metrics.tokens_per_second = static_cast<double>(config.step_tokens()) / seconds;
    metrics.save_seconds = checkpoints_->seconds();
    metrics.memory_bytes = process_memory().resident;
    metrics.memory_peaks = memory_peaks();
    try {
      if (validates_after(trainer_->done())) {
        metrics.validation_loss = trainer_->validate();
      }
    } catch (...) {
      tell(metrics);  // the step itself was taken
      throw;
    }
    tell(metrics);
  }

  void tell(StepMetrics metrics) {
    if (metrics_) {
      metrics.checkpoints = owner_;
      try_side_work(SideWork::output, "metrics", [&] { metrics_->write(metrics); });
    }
    if (progress_) {
      progress_->step(metrics, step_flops_ / metrics.seconds / ceiling_);
    }
  }

  bool validates_after(std::int64_t step) const {
    const std::int64_t every = run_.config.data.validate_every;
    return step == run_.config.train.steps || (every > 0 && step % every == 0);
  }

  /// Whether what a step leaves is validated or saved before the next one.
  bool is_looked_at(std::int64_t step) const {
    return validates_after(step) || checkpoints_->saves_after(step);
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

  void note(const std::string& text) {
    if (progress_) {
      progress_->note(text);
    }
  }

  const Run& run_;
  double step_flops_;
  collective::World& world_;
  Device device_ = cpu;
  std::unique_ptr<Trainer> trainer_;
  std::optional<RunCheckpoints> checkpoints_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::string owner_;  // of the metrics
  std::unique_ptr<Progress> progress_;
  TraceSteps trace_;
  double ceiling_ = 1;
  bool program_tried_ = false;
};

/// `named`: plugins of the command line.
void print_ending(const Run& run, const std::vector<std::string>& named) {
  const Config& config = run.config;
  if (config.checkpoint.folder.empty()) {
    return;
  }
  const std::string checkpoint = checkpoint_folder(config.checkpoint.folder, config.train.steps);
  if (config.log.sample > 0 && config.data.tokens.empty()) {
    const GenerationOptions options{
        .tokens = config.log.sample, .temperature = 0.7, .top_k = 20, .seed = 1};
    try_side_work(SideWork::output, "log.sample", [&] {
      const std::string text = generate_text(checkpoint, config.log.sample_prompt, options);
      fmt::print("\nA sample of {} bytes:\n\n{}{}\n", config.log.sample, config.log.sample_prompt,
                 text);
    });
  }
  fmt::print("\ncheckpoint  {}\n", checkpoint);
  if (!config.log.metrics.empty()) {
    fmt::print("metrics     {}\n", config.log.metrics);
  }
  std::string what = shell_word(checkpoint);
  const std::vector<std::string> built_in = models::built_in_families();
  if (std::ranges::find(built_in, run.shape.family) == built_in.end()) {
    for (const std::vector<std::string>& paths : {named, config.plugins.paths}) {
      for (const std::string& path : paths) {
        what += " --plugin " + shell_word(path);
      }
    }
  }
  if (config.data.tokens.empty()) {
    fmt::print("try next    tessera generate {} --prompt \"The \"\n", what);
  }
  fmt::print("            tessera checkpoint export {} --to FOLDER\n", what);
}

/// What is known of a run before its ranks start, checked.
struct Prepared {
  Run run = {};
  TableRows rows = {};
  CheckedPlan plan = {};
  bool first = true;  // of the processes that another program started
  // Nothing is looked at that another run may be changing, and nothing is written, without it.
  std::unique_ptr<RunLock> lock = {};
};

/// The plan; an error that no entry of [[parallel]] is named for is one of all of them, or of the
/// model.
CheckedPlan planned(const Run& run) {
  try {
    return check_plan(run);
  } catch (const Error& error) {
    const char* const key = error.fields().thing == "mesh" ? "mesh.axes"
                            : run.config.parallel.empty()  ? "model"
                                                           : "parallel";
    return at_key(run.config, key, [&]() -> CheckedPlan { throw Error(error); });
  }
}

Prepared prepared(const TrainArguments& arguments, bool locked) {
  Prepared all;
  Run& run = all.run;
  run.config = load_config(arguments.config, arguments.overrides,
                           [&](const Config& config) { configure_plugins(config, arguments); });
  check_outputs(run.config);
  all.first = collective::is_first_process();
  if (all.first && locked) {
    all.lock = std::make_unique<RunLock>(run.config);
  }
  const bool ready_tokens = !run.config.data.tokens.empty();
  const std::int64_t vocab = ready_tokens ? 0 : make_tokenizer(run.config.data.tokenizer)->vocab();
  run.shape = at_key(run.config, run.config.model.from.empty() ? "model" : "model.from",
                     [&] { return model_shape(run.config, vocab); });
  at_key(run.config, ready_tokens ? "data.tokens" : "data.text", [&] {
    const auto data = std::make_shared<Dataset>(run.config, run.shape.vocab);
    data->check_all();
    run.data = data;
  });
  all.rows = at_key(run.config, "model.adapter",
                    [&] { return plan_rows(run.config, run.shape, *run.data); });
  run.rates = rates_of(run.config);
  all.plan = planned(run);
  run.kept_gathers = all.plan.kept_gathers;
  run.one_rank = all.plan.one_rank;
  all.rows.insert(all.rows.end(), all.plan.rows.begin(), all.plan.rows.end());
  return all;
}

/// Of the run that a config asks for, whatever it has saved.
int capture(TrainArguments arguments, const CaptureArguments& captured) {
  arguments.overrides.emplace_back("graph.capture=true");
  if (!captured.part.empty()) {
    arguments.overrides.emplace_back("graph.across_steps=true");  // where it cannot be is an error
  }
  const Prepared all = prepared(arguments, false);
  const Run& run = all.run;
  if (captured.rank < 0 || captured.rank >= run.config.ranks()) {
    fail_input({.thing = "--rank",
                .wrong = "the mesh has no such rank",
                .expected = fmt::format("0 to {}", run.config.ranks() - 1),
                .got = fmt::format("{}", captured.rank)});
  }
  if (all.first) {
    write_output("graph capture", captured.to,
                 capture_part(run, captured.rank, captured.part).to_text());
    fmt::print("{}\nprogram written: {}\n", format_table(all.rows), captured.to);
  }
  return 0;
}

int train(const TrainArguments& arguments) {
  const bool dry_run = arguments.dry_run || arguments.account;
  Prepared all = prepared(arguments, !dry_run);
  Run& run = all.run;
  run.fingerprint = fingerprint_of(run.config, run.shape, *run.data);
  const StartPoint start = at_key(run.config, resume_key(run.config), [&] {
    return check_stored(run, checkpoint_to_resume(run.config), dry_run);
  });
  check_folder(run.config, start);
  trace_range(run.config, start.step);
  if (all.first) {
    if (!run.config.log.metrics.empty()) {
      check_metrics(run.config.place("log.metrics"), run.config.log.metrics,
                    metrics_owner(run.config.log.metrics, run.config.checkpoint.folder));
    }
    fmt::print("{}", format_table(all.rows));
    check_stdout();
  }
  if (dry_run) {
    if (all.first && arguments.account) {
      fmt::print("\nOne step on rank 0:\n\n{}", all.plan.account.to_string());
    }
    return 0;
  }
  const auto rank_run = [&](collective::World& world) {
    if (all.lock) {
      all.lock->leave_to_owner();
    }
    return RankRun(run, all.plan.account.model_flops, start, world)();
  };
  collective::LaunchOptions options;
  options.ranks = static_cast<int>(run.config.ranks());
  options.needed_bytes = all.plan.shared_bytes;
  options.rank_bytes = all.plan.rank_bytes;
  options.rank_threads = threads_of_rank(run.config) + (run.config.mesh.background ? 1 : 0);
  options.transport = run.config.mesh.transport;
  const int code = collective::launched_by_other() ? collective::join_launch(options, rank_run)
                                                   : collective::launch(options, rank_run);
  if ((code == 0 || code == incomplete) && all.first) {
    print_ending(run, arguments.plugins);
  }
  if (code == incomplete || (code == 0 && !incomplete_outputs().empty())) {
    fail({.thing = "train",
          .wrong = "all steps are done, and not everything else could be written",
          .advice = "the warnings above say what is missing"});
  }
  return code;
}

/// Every rank of another launcher makes the checks before the launch: one of them prints.
int reported(const ErrorPrinter& print, const std::function<int()>& body) {
  try {
    return body();
  } catch (const collective::PeerFailed&) {
    throw;
  } catch (const Error& error) {
    collective::report_refusal(error.what(), error.kind(), [&] { print(error.what()); });
    throw collective::PeerFailed(error.what(), error.kind());
  }
}

}  // namespace

int run_train(const TrainArguments& arguments, const ErrorPrinter& print) {
  return reported(print, [&] { return train(arguments); });
}

int run_graph_capture(const TrainArguments& arguments, const CaptureArguments& captured,
                      const ErrorPrinter& print) {
  return reported(print, [&] { return capture(arguments, captured); });
}

}  // namespace tessera::app
