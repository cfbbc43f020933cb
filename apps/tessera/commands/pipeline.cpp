module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.pipeline;
import tessera.app.base;
import tessera.app.trace;
import :draw_pipeline;

// `tessera pipeline`: schedules of pipelines as pictures and tables.
namespace tessera::app {
namespace {

using namespace pipeline;

/// Wider pictures in text are left out.
constexpr std::size_t widest = 240;

Schedule from_file(const PipelineArguments& arguments) {
  if (!std::filesystem::exists(arguments.schedule)) {
    const std::vector<std::string> names = schedule_kind_names();
    fail_input({.thing = fmt::format("pipeline schedule '{}'", shown(arguments.schedule)),
                .wrong = fmt::format("it is no kind, and there is no such file{}",
                                     did_you_mean(arguments.schedule, names)),
                .expected = fmt::format("{}, or a file", fmt::join(names, ", "))});
  }
  if (arguments.ranks || arguments.stages_per_rank || arguments.micro_batches) {
    fail_input({.thing = arguments.schedule,
                .wrong = "the sizes of a schedule in a file are in the file",
                .advice = "leave out --ranks, --stages-per-rank and --micro-batches"});
  }
  return parse_schedule(read_input(arguments.schedule), arguments.schedule);
}

Schedule schedule_of(const PipelineArguments& arguments) {
  const ScheduleKind* const kind = find_schedule_kind(arguments.schedule);
  if (kind == nullptr) {
    return from_file(arguments);
  }
  return make_schedule(
      kind->name,
      {.ranks = arguments.ranks.value_or(4),
       .stages_per_rank = arguments.stages_per_rank.value_or(kind->least_stages_per_rank),
       .micro_batches = arguments.micro_batches.value_or(8)});
}

/// The costs that the user gives, of a stage that has all of a rank's part of the model.
Costs costs_of(const Schedule& schedule, const PipelineArguments& arguments) {
  Costs costs{.transfer = arguments.transfer};
  for (const int rank : schedule.rank_of_stage) {
    const double part = 1.0 / static_cast<double>(schedule.stages_of(rank).size());
    costs.stages.push_back({.forward = part * arguments.forward,
                            .input_gradient = part * arguments.input_gradient,
                            .weight_gradient = part * arguments.weight_gradient});
  }
  return costs;
}

/// Costs that a run has measured.
Costs measured_costs(const Schedule& schedule, const PipelineArguments& arguments,
                     const StageTimes& measured) {
  if (measured.stages.size() != static_cast<std::size_t>(schedule.stages())) {
    fail_input({.thing = arguments.times,
                .wrong = "the run had other stages than the schedule",
                .expected = fmt::format("{}", schedule.stages()),
                .got = fmt::format("{}", measured.stages.size()),
                .advice = "change --ranks or --stages-per-rank"});
  }
  if (schedule.splits_backward() && !measured.splits_backward) {
    fail_input({.thing = arguments.times,
                .wrong = "its backwards are whole, and those of the schedule are two halves",
                .advice = "trace a run with such a schedule"});
  }
  return {.stages = measured.stages, .transfer = arguments.transfer};
}

/// The longest unit of time of which every action takes a whole number, or nearly.
double unit_of_time(const Simulation& simulation) {
  double shortest = simulation.end;
  for (const std::vector<TimedAction>& of_rank : simulation.ranks) {
    for (const TimedAction& timed : of_rank) {
      if (timed.end > timed.begin) {
        shortest = std::min(shortest, timed.end - timed.begin);
      }
    }
  }
  return shortest;
}

std::size_t width_of(const std::string& text) {
  std::size_t widest_line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    widest_line = std::max(widest_line, end - at);
    at = end + 1;
  }
  return widest_line;
}

void print_table(const Schedule& schedule, const Simulation& simulation) {
  TableRows rows = {{"rank", "stages", "computes", "keeps at most"}};
  const std::vector<int> kept = most_kept(schedule);
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    std::string stages;
    for (const int stage : schedule.stages_of(static_cast<int>(rank))) {
      stages += fmt::format("{}{}", stages.empty() ? "" : ", ", stage);
    }
    rows.push_back({fmt::format("{}", rank), stages,
                    fmt::format("{:.1f}%", 100 * simulation.busy[rank] / simulation.end),
                    count_text(kept[rank], "forward")});
  }
  fmt::print("{}", format_table(rows));
}

}  // namespace

int run_pipeline_draw(const PipelineArguments& arguments) {
  const Schedule schedule = schedule_of(arguments);
  check(schedule, arguments.schedule);
  std::optional<StageTimes> measured;
  if (!arguments.times.empty()) {
    measured = stage_times(read_trace(arguments.times), arguments.times);
  }
  const Simulation simulation =
      simulate(schedule, measured ? measured_costs(schedule, arguments, *measured)
                                  : costs_of(schedule, arguments));
  if (!arguments.table.empty()) {
    write_output("pipeline", arguments.table, to_text(schedule));
  }
  if (!arguments.svg.empty()) {
    write_output("pipeline", arguments.svg, draw_pipeline(schedule, simulation));
  }
  const std::string text = draw_text(schedule, simulation, unit_of_time(simulation));
  if (width_of(text) <= widest) {
    fmt::print("{}\n", text);
  }
  print_table(schedule, simulation);
  fmt::print("\n{}, {} micro-batches: {:.4g} {}, bubble {:.1f}%\n",
             count_text(schedule.stages(), "stage"), schedule.micro_batches, simulation.end,
             measured ? "ms" : "units of time", 100 * simulation.bubble());
  if (measured) {
    fmt::print("measured: {:.4g} ms a step, bubble {:.1f}%\n", measured->step,
               100 * measured->bubble);
  }
  return 0;
}

}  // namespace tessera::app
