module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.app.tools;

import tessera.base;
import tessera.mesh;
import tessera.program;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.trace;
import tessera.app.run;
import tessera.app.plan;
import tessera.app.commands;
import :plan;

// `tessera plan`.
namespace tessera::app {
namespace {

/// Overrides that put a run on `ranks` ranks. Error (input): they cannot.
std::vector<std::string> on_ranks(const runs::RunSpec& config, std::int64_t ranks) {
  const std::vector<std::int64_t>& shape = config.mesh.shape;
  std::int64_t others = 1;
  for (std::size_t axis = 1; axis < shape.size(); ++axis) {
    others *= shape[axis];
  }
  if (shape.empty() || ranks % others != 0) {
    fail_input({.thing = "--ranks",
                .wrong = shape.empty()
                             ? "the run has no mesh"
                             : fmt::format("the other axes of the mesh have {} ranks", others),
                .expected = shape.empty() ? "an axis in mesh.axes"
                                          : fmt::format("a multiple of {}", others),
                .got = std::to_string(ranks)});
  }
  std::vector<std::int64_t> resized = shape;
  resized[0] = ranks / others;
  const std::int64_t batch = config.train.batch * resized[0];
  if (batch % shape[0] != 0) {
    fail_input({.thing = "--ranks",
                .wrong = fmt::format("a batch of {} on {} ranks of '{}' does not give a whole one "
                                     "on {}",
                                     config.train.batch, shape[0], config.mesh.axes[0], resized[0]),
                .advice = "set train.batch and mesh.shape instead"});
  }
  return {fmt::format("mesh.shape=[{}]", fmt::join(resized, ",")),
          fmt::format("train.batch={}", batch / shape[0])};
}

/// A config with so many ranks on one axis: only their number and threads are right.
runs::RunSpec on_ranks_alone(const TrainArguments& arguments, std::int64_t ranks) {
  std::vector<std::string> overrides = arguments.overrides;
  overrides.insert(overrides.end(),
                   {"mesh.axes=[\"rank\"]", fmt::format("mesh.shape=[{}]", ranks), "parallel=[]",
                    "mesh.latency_us=[]", "mesh.bandwidth_gb=[]", "graph.mode=\"\""});
  return load_config(arguments.config, overrides);
}

/// The run that a config describes, on as many ranks as are wanted. Its data are those of the
/// config's own batch: a plan needs no more.
runs::Run run_to_plan(const TrainArguments& arguments, const PlanArguments& options) {
  runs::Run run;
  const runs::RunSpec epochs = load_run_config(arguments);
  run.config = epochs;
  const auto task = runs::open_language_task(run.config);
  run.config = runs::with_data(std::move(run.config), task->data());
  if (options.ranks > 0) {
    std::vector<std::string> overrides =
        with_steps(TrainArguments(arguments), epochs, task->data()).overrides;
    for (std::string& override : on_ranks(run.config, options.ranks)) {
      overrides.push_back(std::move(override));
    }
    run.config = load_config(arguments.config, overrides);
  }
  if (!options.hardware.empty()) {
    const int there = read_hardware(options.hardware).ranks;
    run.launchers = static_cast<int>((run.config.ranks() + there - 1) / there);
  }
  run.task = task;
  run.rates = runs::rates_of(run.config);
  return run;
}

/// What a table or JSON says of a run with a trial, whose step takes these times.
ForecastRun report_of(const runs::Run& run, const runs::Trial& trial, StepTimes step,
                      const Planner& planner, const PlanArguments& options) {
  add_keeping(step, planner.hardware(), run, trial);
  const auto step_tokens = static_cast<double>(run.config.step_tokens());
  return {.step = step,
          .hardware = planner.hardware(),
          .ranks = static_cast<int>(run.config.ranks()),
          .step_tokens = step_tokens,
          .model_flops = trial.account.model_flops,
          .memory = trial.account.memory,
          .tokens = options.tokens > 0 ? options.tokens
                                       : step_tokens * static_cast<double>(run.config.train.steps),
          .failing = failing_run(planner.hardware(), run.config, trial, step.seconds)};
}

Planner planner_of(const runs::RunSpec& config, const PlanArguments& options) {
  Planner planner(config, options.hardware);
  if (options.failures > 0) {
    planner.set_failures(options.failures);
  }
  if (options.hardware.empty() && !options.save_hardware.empty()) {
    write_output("--save-hardware", options.save_hardware, hardware_text(planner.hardware()));
  }
  return planner;
}

/// Measured seconds of each operator in a step of a rank, and those in which it waits.
struct MeasuredStep {
  std::map<std::string, double> operators = {};
  double waiting = 0;
  double seconds = 0;
};
MeasuredStep measured_step(const TraceData& trace) {
  MeasuredStep step;
  const double steps = static_cast<double>(trace.last_step - trace.first_step + 1);
  const double each = 1e-6 / steps / static_cast<double>(trace.ranks.size());
  for (const std::vector<FileSlice>& slices : trace.ranks) {
    for (const FileSlice& slice : slices) {
      step.seconds += each * slice.own;
      if (slice.category == "operator" || slice.category == "local operator") {
        step.operators[slice.name] += each * slice.own;
      } else if (slice.waits() || slice.category == "collective") {
        step.waiting += each * slice.own;
      }
    }
  }
  return step;
}

/// Planned and measured milliseconds of a rank's step, the longest planned ones first.
std::string compared_table(const StepTimes& planned, const MeasuredStep& measured) {
  TableRows rows = {{"operator", "planned ms", "measured ms", "planned / measured"}};
  const auto add = [&](const std::string& name, double by_plan, double by_trace) {
    rows.push_back({name, fmt::format("{:.3g}", 1e3 * by_plan),
                    fmt::format("{:.3g}", 1e3 * by_trace),
                    by_trace > 0 ? fmt::format("{:.2f}", by_plan / by_trace) : "-"});
  };
  double others = measured.seconds - measured.waiting;
  for (const KernelSum& sum : planned.kernels) {
    const auto found = measured.operators.find(sum.name);
    const double by_trace = found == measured.operators.end() ? 0 : found->second;
    add(sum.name, sum.seconds, by_trace);
    others -= by_trace;
  }
  add("waiting for other ranks", planned.waiting, measured.waiting);
  add("everything else", planned.calling, others);
  add("step", planned.seconds, measured.seconds);
  return format_table(rows);
}

/// What both kinds of plans end with: JSON, or text, a page and a comparison.
void print_sections(const PlanArguments& options, std::vector<PageSection> sections,
                    const StepTimes& step, const std::optional<MeasuredStep>& measured) {
  if (measured) {
    sections.push_back({.title = "Planned and measured", .text = compared_table(step, *measured)});
  }
  for (const PageSection& section : sections) {
    if (!section.text.empty()) {
      fmt::print("{}{}", &section == sections.data() ? "" : "\n", section.text);
    }
  }
  if (!options.page.empty()) {
    write_output("--page", options.page, page_of("Plan of a step", sections));
  }
}

/// A step of a model in stages.
void print_staged_plan(const runs::Run& run, TableRows rows, const runs::Facts& facts,
                       Planner& planner, const PlanArguments& options,
                       const std::optional<MeasuredStep>& measured) {
  if (!options.trace.empty()) {
    fail_input({.thing = "--trace",
                .wrong = "the ranks of a model in stages do different things",
                .advice = "leave it out; --page FILE has a picture of the schedule"});
  }
  const StagedStep step = plan_stages(run, facts.trial, planner);
  const ForecastRun planned = report_of(run, facts.trial, step.times, planner, options);
  if (options.json) {
    fmt::print("{}", staged_json(planned, step));
    return;
  }
  for (const TableRows& more : {planned_rows(planned), staged_rows(step)}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  print_sections(options,
                 {{.title = "The run", .text = format_table(rows)},
                  {.title = "Stages",
                   .text = staged_table(step, facts.trial),
                   .picture = draw_pipeline(step.schedule, step.simulation)},
                  {.title = "Operators", .text = planned_tables(planned)}},
                 step.times, measured);
}

/// The picture of a trace.
std::string picture_of(const Program& program, const SimulatedStep& step, const DeviceMesh& mesh,
                       const std::string& page) {
  const std::string file = page + ".trace.json";
  write_planned_trace(program, step, mesh, file);
  const std::string picture = draw_trace(read_trace(file));
  std::filesystem::remove(file);
  return picture;
}

void print_plan(const runs::Run& run, TableRows rows, const runs::Facts& facts, Planner& planner,
                const PlanArguments& options, const std::optional<MeasuredStep>& measured) {
  const runs::StepSetup setup = runs::setup_of(run);
  const Program program = step_program(run, setup);
  const SimulatedStep step = planner.simulated(program);
  const DeviceMesh& mesh = setup.mesh;
  const StepTimes sums = planner.times_of(run, setup, program, step);
  const ForecastRun planned = report_of(run, facts.trial, sums, planner, options);
  if (!options.trace.empty()) {
    write_planned_trace(program, step, mesh, options.trace);
  }
  if (options.json) {
    fmt::print("{}", planned_json(planned));
    return;
  }
  for (auto& row : planned_rows(planned)) {
    rows.push_back(std::move(row));
  }
  std::vector<PageSection> sections = {{.title = "The run", .text = format_table(rows)},
                                       {.title = "Operators", .text = planned_tables(planned)}};
  if (!options.page.empty()) {
    sections.push_back({.title = "Time", .picture = picture_of(program, step, mesh, options.page)});
    sections.push_back({.title = "Memory", .picture = draw_program(program)});
  }
  print_sections(options, std::move(sections), sums, measured);
}

/// `tessera plan --search`.
int search(const TrainArguments& arguments, const PlanArguments& options) {
  for (const auto& [option, given] : {std::pair("--trace", !options.trace.empty()),
                                      {"--page", !options.page.empty()},
                                      {"--compare", !options.compare.empty()}}) {
    if (given) {
      fail_input({.thing = option,
                  .wrong = "a search plans many steps",
                  .advice = "save the best one with --save FILE, and plan that"});
    }
  }
  if (options.tries > 0 && !options.hardware.empty()) {
    fail_input({.thing = "--try",
                .wrong = "candidates are run on this machine, and --hardware is about another one",
                .advice = "leave out one of them"});
  }
  const runs::RunSpec config = load_run_config(arguments);
  const auto task = runs::open_language_task(config);
  const TrainArguments fixed = with_steps(TrainArguments(arguments), config, task->data());
  const SearchedRun searched{.file = arguments.config,
                             .overrides = fixed.overrides,
                             .ranks = options.ranks > 0 ? options.ranks : config.ranks(),
                             .precisions = options.precisions,
                             .task = task};
  Planner planner = planner_of(on_ranks_alone(fixed, searched.ranks), options);
  SearchResult result = search_layouts(searched, planner);
  if (options.tries > 0) {
    run_best(searched, result, static_cast<std::size_t>(options.tries), plugin_words(arguments));
  }
  const LayoutCandidate& best = result.planned.front();
  runs::Run run;
  run.config = config_of(searched, best);
  run.task = searched.task;
  run.rates = runs::rates_of(run.config);
  const runs::Facts facts = runs::facts_of(run);
  if (!options.save.empty()) {
    write_output("--save", options.save,
                 fmt::format("# {}: {} (tessera plan --search)\n\n{}", arguments.config,
                             best.layout.name, to_toml(run.config)));
  }
  if (options.json) {
    fmt::print("{}", search_json(result, planner.hardware()));
    return 0;
  }
  const ForecastRun report = report_of(run, facts.trial, best.step, planner, options);
  fmt::print("{}{}", format_table(planned_rows(report)), search_text(result, planner.hardware()));
  return 0;
}

}  // namespace

int run_plan(const TrainArguments& arguments, const PlanArguments& options) {
  if (options.search) {
    return search(arguments, options);
  }
  for (const auto& [option, given] : {std::pair("--save", !options.save.empty()),
                                      {"--precision", !options.precisions.empty()},
                                      {"--try", options.tries > 0}}) {
    if (given) {
      fail_input({.thing = option,
                  .wrong = "is of a search for the best layout",
                  .advice = "add --search"});
    }
  }
  std::optional<MeasuredStep> measured;
  if (!options.compare.empty()) {
    measured = measured_step(read_trace(options.compare));
  }
  const runs::Run run = run_to_plan(arguments, options);
  TableRows rows = plan_rows(run.config, runs::language_of(run));
  const runs::Facts facts = runs::facts_of(run);
  for (auto& row : fact_rows(run, facts)) {
    rows.push_back(std::move(row));
  }
  Planner planner = planner_of(run.config, options);
  if (is_staged(facts.trial)) {
    print_staged_plan(run, std::move(rows), facts, planner, options, measured);
  } else {
    print_plan(run, std::move(rows), facts, planner, options, measured);
  }
  return 0;
}

}  // namespace tessera::app
