module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.runs;
import tessera.app.base;
import tessera.app.trace;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

std::string milliseconds(double seconds) { return fmt::format("{:.3g}", 1e3 * seconds); }
std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}
std::string calls_text(double calls) { return fmt::format("{:.0f}", calls); }
std::string bytes_text(double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

double tokens_per_second(const ForecastRun& run) { return run.step_tokens / run.step.seconds; }

/// The share of the rate of products that the model's own products reach.
double utilisation(const ForecastRun& run) {
  return run.model_flops / run.step.seconds / run.ranks / run.hardware.rates.products;
}

std::string hardware_row(const Hardware& hardware) {
  std::string text = fmt::format(
      "{}: {} on a machine, products {}/s, memory {}/s, between ranks {}/s", hardware.name,
      count_text(hardware.ranks, "rank"), format_flops(hardware.rates.products),
      bytes_text(hardware.rates.bandwidth), bytes_text(hardware.inside.bandwidth));
  if (hardware.source.empty()) {
    return text;
  }
  return fmt::format("{} ({})", text, hardware.source);
}

/// "1.5 s", "12 min", "3.2 h", "5.1 days".
std::string time_text(double seconds) {
  return seconds < 120    ? fmt::format("{:.3g} s", seconds)
         : seconds < 7200 ? fmt::format("{:.3g} min", seconds / 60)
         : seconds < 2e5  ? fmt::format("{:.3g} h", seconds / 3600)
                          : fmt::format("{:.3g} days", seconds / 86400);
}

TableRows failure_rows(const FailingRun& run, double step) {
  FailingRun best = run;
  best.interval = best_interval(run);
  TableRows rows = {
      {"failures",
       fmt::format("one in {}; a checkpoint stops the run for {}, a restart takes {}",
                   time_text(run.between), time_text(run.write), time_text(run.restart))}};
  if (run.interval > 0) {
    rows.push_back({"lost", fmt::format("{:.2f}% of the time, with a checkpoint every {}",
                                        100 * lost_share(run), time_text(run.interval))});
  } else {
    rows.push_back({"lost", "all work at every failure, as the run writes no checkpoints"});
  }
  rows.push_back(
      {"best interval", fmt::format("{} ({:.0f} steps): {:.2f}% of the time (Daly's formula)",
                                    time_text(best.interval), std::ceil(best.interval / step),
                                    100 * lost_share(best))});
  return rows;
}

}  // namespace

TableRows planned_rows(const ForecastRun& run) {
  const StepTimes& step = run.step;
  const auto memory = static_cast<double>(run.memory.total_peak);
  TableRows rows = {
      {"hardware", hardware_row(run.hardware)},
      {"step", fmt::format("{} ms: computing {}, {}communicating {}, of which {} are hidden{}",
                           milliseconds(step.seconds), milliseconds(step.computing),
                           step.calling > 0
                               ? fmt::format("calling operators {}, ", milliseconds(step.calling))
                               : std::string(),
                           milliseconds(step.communicating), milliseconds(step.hidden()),
                           step.keeping > 0
                               ? fmt::format(", keeping the state {}", milliseconds(step.keeping))
                               : std::string())},
      {"tokens/s", fmt::format("{}; {} of a rank, {} of the rate of products",
                               format_count(tokens_per_second(run)),
                               format_count(tokens_per_second(run) / run.ranks),
                               percent(utilisation(run), 1))}};
  if (run.hardware.memory > 0) {
    rows.push_back(
        {"memory",
         fmt::format("{} of a rank's {}{}", bytes_text(memory), bytes_text(run.hardware.memory),
                     memory > run.hardware.memory ? ": too much; split more, or use smaller "
                                                    "micro-batches or activation checkpointing"
                                                  : "")});
  }
  const bool fails = run.failing.between > 0;
  if (fails) {
    for (auto& row : failure_rows(run.failing, run.step.seconds)) {
      rows.push_back(std::move(row));
    }
  }
  if (run.tokens > 0) {
    const double longer = fails && run.failing.interval > 0 ? time_by_work(run.failing) : 1;
    const double seconds = longer * run.tokens / tokens_per_second(run);
    const double hours = seconds / 3600 * run.ranks;
    rows.push_back({"training",
                    fmt::format("{} tokens in {:.3g} days{}: {:.3g} hours of ranks{}",
                                format_count(run.tokens), seconds / 86400,
                                longer > 1 ? " with failures" : "", hours,
                                run.hardware.price > 0
                                    ? fmt::format(", which cost {:.4g}", hours * run.hardware.price)
                                    : std::string())});
  }
  return rows;
}

std::string planned_tables(const ForecastRun& run) {
  constexpr std::size_t most = 14;
  const std::vector<KernelSum>& kernels = run.step.kernels;
  TableRows rows = {{"computing", "calls", "ms", "share"}};
  KernelSum rest;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    if (k < most) {
      rows.push_back({kernels[k].name, calls_text(kernels[k].calls),
                      milliseconds(kernels[k].seconds),
                      percent(kernels[k].seconds, run.step.seconds)});
    } else {
      rest.calls += kernels[k].calls;
      rest.seconds += kernels[k].seconds;
    }
  }
  if (rest.calls > 0) {
    rows.push_back({fmt::format("{} others", kernels.size() - most), calls_text(rest.calls),
                    milliseconds(rest.seconds), percent(rest.seconds, run.step.seconds)});
  }
  std::string text = format_table(rows);
  rows = {{"communicating", "on", "calls", "received", "ms", "not hidden"}};
  for (const CollectiveSum& sum : run.step.collectives) {
    rows.push_back({sum.name, sum.axes, calls_text(sum.calls), bytes_text(sum.received),
                    milliseconds(sum.seconds), milliseconds(sum.waited)});
  }
  return rows.size() > 1 ? text + "\n" + format_table(rows) : text;
}

std::string planned_json(const ForecastRun& run) {
  Json all = {{"hardware", run.hardware.name},
              {"ranks", run.ranks},
              {"step_tokens", run.step_tokens},
              {"seconds", run.step.seconds},
              {"computing_seconds", run.step.computing},
              {"calling_seconds", run.step.calling},
              {"communicating_seconds", run.step.communicating},
              {"waiting_seconds", run.step.waiting},
              {"keeping_seconds", run.step.keeping},
              {"tokens_per_second", tokens_per_second(run)},
              {"share_of_products", utilisation(run)},
              {"memory_bytes", run.memory.total_peak},
              {"memory_peaks", Json::object()},
              {"operators", Json::array()},
              {"collectives", Json::array()}};
  for (int i = 0; i < memory_category_count; ++i) {
    all["memory_peaks"][name_of(static_cast<MemoryCategory>(i))] =
        run.memory.peak[static_cast<std::size_t>(i)];
  }
  if (run.failing.between > 0) {
    FailingRun best = run.failing;
    best.interval = best_interval(best);
    all["failures"] = {{"seconds_between", best.between},
                       {"writing_seconds", best.write},
                       {"restart_seconds", best.restart},
                       {"interval_seconds", run.failing.interval},
                       {"lost_share", run.failing.interval > 0 ? lost_share(run.failing) : 1},
                       {"best_interval_seconds", best.interval},
                       {"best_lost_share", lost_share(best)}};
  }
  for (const KernelSum& sum : run.step.kernels) {
    all["operators"].push_back(
        {{"operator", sum.name}, {"calls", std::llround(sum.calls)}, {"seconds", sum.seconds}});
  }
  for (const CollectiveSum& sum : run.step.collectives) {
    all["collectives"].push_back({{"operator", sum.name},
                                  {"axes", sum.axes},
                                  {"calls", std::llround(sum.calls)},
                                  {"received_bytes", sum.received},
                                  {"seconds", sum.seconds},
                                  {"waiting_seconds", sum.waited}});
  }
  return json_text(all, 2) + "\n";
}

void write_planned_trace(const Program& program, const SimulatedStep& step, const DeviceMesh& mesh,
                         const std::string& file) {
  const auto places = graph::places_of(program);
  const auto nanoseconds = [](double seconds) {
    return static_cast<std::int64_t>(1e9 * seconds + 0.5);
  };
  const auto slice_of = [&](const StepSpan& span, std::string_view category) {
    const Instruction& i = *places[span.place];
    const ProgramScope& scope = program.scopes[i.scope];
    runs::TraceSlice slice{.category = category,
                           .name = kernel_name(i),
                           .begin = nanoseconds(span.begin),
                           .end = std::max(nanoseconds(span.end), nanoseconds(span.begin) + 1)};
    slice.module = scope.module.empty() ? nullptr : interned_name(scope.module);
    slice.backward = scope.phase == Phase::backward || scope.phase == Phase::recomputation;
    return slice;
  };
  const auto of_collective = [&](const StepSpan& span, std::string_view category) {
    const Instruction& i = *places[span.place];
    runs::TraceSlice slice = slice_of(span, category);
    slice.collective = true;
    slice.bytes = graph::received_bytes(program, i);
    slice.ranks = {program.rank};
    slice.group = graph::group_of(i) == nullptr ? "" : axes_of(mesh, *graph::group_of(i));
    slice.sequence = static_cast<std::uint64_t>(span.place.number);
    return slice;
  };
  runs::RankTrace trace;
  for (const StepSpan& span : step.computing) {
    trace.slices.push_back(slice_of(span, "operator"));
  }
  for (const StepSpan& span : step.waiting) {
    trace.slices.push_back(of_collective(span, "wait"));
  }
  std::ranges::sort(trace.slices, {}, &runs::TraceSlice::begin);
  for (const StepSpan& span : step.communicating) {
    if (span.end > span.begin) {
      trace.streamed.push_back(
          {.slice = of_collective(span, "stream"), .queued = nanoseconds(span.begin)});
    }
  }
  runs::write_trace_file("--trace", file,
                         {.first_step = 1, .last_step = 1, .mesh = to_string(mesh)},
                         {runs::trace_events(trace, 0, 0)});
}

}  // namespace tessera::app
