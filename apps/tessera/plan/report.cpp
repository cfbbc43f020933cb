module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import tessera.app.trace;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

std::string milliseconds(double seconds) { return fmt::format("{:.3g}", 1e3 * seconds); }
std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}
std::string bytes_text(double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

/// The axes of the mesh along which the ranks of a group differ: "shard", "shard+tensor".
std::string axes_of(const DeviceMesh& mesh, const CallGroup& group) {
  const auto first = mesh.coordinates_of(group.ranks.front());
  const auto last = mesh.coordinates_of(group.ranks.back());
  std::string axes;
  for (int axis = 0; first && last && axis < mesh.ndim(); ++axis) {
    if ((*first)[axis] != (*last)[axis]) {
      axes += (axes.empty() ? "" : "+") + mesh.axis_name(axis);
    }
  }
  return axes;
}

std::string kernel_name(const Instruction& i) {
  return i.kind == Instruction::Kind::call ? i.op->name : "full";
}

struct KernelSum {
  std::string name;
  std::int64_t calls = 0;
  double seconds = 0;
};

struct CollectiveSum {
  std::string name;
  std::string axes;
  std::int64_t calls = 0;
  double received = 0;  // bytes
  double seconds = 0;
  double waited = 0;  // of the rank
};

/// The longest first.
template <class Key, class Sum>
std::vector<Sum> sorted(std::map<Key, Sum> sums) {
  std::vector<Sum> all;
  for (auto& [key, sum] : sums) {
    all.push_back(std::move(sum));
  }
  std::ranges::sort(all, [](const Sum& a, const Sum& b) {
    return a.seconds != b.seconds ? a.seconds > b.seconds : a.name < b.name;
  });
  return all;
}

std::vector<KernelSum> kernel_sums(const PlannedRun& run) {
  const auto places = graph::places_of(run.program);
  std::map<std::string, KernelSum> sums;
  for (const StepSpan& span : run.step.computing) {
    KernelSum& sum = sums[kernel_name(*places[span.place])];
    sum.name = kernel_name(*places[span.place]);
    ++sum.calls;
    sum.seconds += span.end - span.begin;
  }
  return sorted(std::move(sums));
}

std::vector<CollectiveSum> collective_sums(const PlannedRun& run) {
  const auto places = graph::places_of(run.program);
  std::map<std::pair<std::string, std::string>, CollectiveSum> sums;
  const auto sum_of = [&](PlaceIndex place) -> CollectiveSum& {
    const Instruction& i = *places[place];
    const CallGroup* const group = graph::group_of(i);
    const std::string axes = group == nullptr ? std::string() : axes_of(run.mesh, *group);
    CollectiveSum& sum = sums[{i.op->name, axes}];
    sum.name = i.op->name;
    sum.axes = axes;
    return sum;
  };
  for (const StepSpan& span : run.step.communicating) {
    if (span.end > span.begin) {
      CollectiveSum& sum = sum_of(span.place);
      ++sum.calls;
      sum.received += static_cast<double>(graph::received_bytes(run.program, *places[span.place]));
      sum.seconds += span.end - span.begin;
    }
  }
  for (const StepSpan& span : run.step.waiting) {
    sum_of(span.place).waited += span.end - span.begin;
  }
  return sorted(std::move(sums));
}

double tokens_per_second(const PlannedRun& run) { return run.step_tokens / run.step.seconds; }

/// The share of the rate of products that the model's own products reach.
double utilisation(const PlannedRun& run) {
  return run.model_flops / run.step.seconds / run.mesh.size() / run.hardware.rates.products;
}

std::string hardware_row(const Hardware& hardware) {
  std::string text = fmt::format(
      "{}: {} rank{} on a machine, products {}/s, memory {}/s, between ranks {}/s", hardware.name,
      hardware.ranks, hardware.ranks == 1 ? "" : "s", format_flops(hardware.rates.products),
      bytes_text(hardware.rates.bandwidth), bytes_text(hardware.inside.bandwidth));
  if (hardware.source.empty()) {
    return text;
  }
  return fmt::format("{} ({})", text, hardware.source);
}

}  // namespace

TableRows planned_rows(const PlannedRun& run) {
  const SimulatedStep& step = run.step;
  const double hidden = step.communicated() - step.waited();
  TableRows rows = {
      {"hardware", hardware_row(run.hardware)},
      {"step", fmt::format("{} ms: computing {}, communicating {}, of which {} are hidden",
                           milliseconds(step.seconds), milliseconds(step.computed()),
                           milliseconds(step.communicated()), milliseconds(hidden))},
      {"tokens/s", fmt::format("{}; {} of a rank, {} of the rate of products",
                               format_count(tokens_per_second(run)),
                               format_count(tokens_per_second(run) / run.mesh.size()),
                               percent(utilisation(run), 1))}};
  if (run.hardware.memory > 0) {
    rows.push_back(
        {"memory",
         fmt::format("{} of a rank's {}{}", bytes_text(run.memory), bytes_text(run.hardware.memory),
                     run.memory > run.hardware.memory ? ": too much; split more, or use smaller "
                                                        "micro-batches or activation checkpointing"
                                                      : "")});
  }
  if (run.tokens > 0) {
    const double seconds = run.tokens / tokens_per_second(run);
    const double hours = seconds / 3600 * run.mesh.size();
    rows.push_back({"training",
                    fmt::format("{} tokens in {:.3g} days: {:.3g} hours of ranks{}",
                                format_count(run.tokens), seconds / 86400, hours,
                                run.hardware.price > 0
                                    ? fmt::format(", which cost {:.4g}", hours * run.hardware.price)
                                    : std::string())});
  }
  return rows;
}

std::string planned_tables(const PlannedRun& run) {
  constexpr std::size_t most = 14;
  const std::vector<KernelSum> kernels = kernel_sums(run);
  TableRows rows = {{"computing", "calls", "ms", "share"}};
  KernelSum rest;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    if (k < most) {
      rows.push_back({kernels[k].name, std::to_string(kernels[k].calls),
                      milliseconds(kernels[k].seconds),
                      percent(kernels[k].seconds, run.step.seconds)});
    } else {
      rest.calls += kernels[k].calls;
      rest.seconds += kernels[k].seconds;
    }
  }
  if (rest.calls > 0) {
    rows.push_back({fmt::format("{} others", kernels.size() - most), std::to_string(rest.calls),
                    milliseconds(rest.seconds), percent(rest.seconds, run.step.seconds)});
  }
  std::string text = "\n" + format_table(rows);
  rows = {{"communicating", "on", "calls", "received", "ms", "not hidden"}};
  for (const CollectiveSum& sum : collective_sums(run)) {
    rows.push_back({sum.name, sum.axes, std::to_string(sum.calls), bytes_text(sum.received),
                    milliseconds(sum.seconds), milliseconds(sum.waited)});
  }
  return rows.size() > 1 ? text + "\n" + format_table(rows) : text;
}

std::string planned_json(const PlannedRun& run) {
  Json all = {{"hardware", run.hardware.name},
              {"ranks", run.mesh.size()},
              {"step_tokens", run.step_tokens},
              {"seconds", run.step.seconds},
              {"computing_seconds", run.step.computed()},
              {"communicating_seconds", run.step.communicated()},
              {"waiting_seconds", run.step.waited()},
              {"tokens_per_second", tokens_per_second(run)},
              {"share_of_products", utilisation(run)},
              {"memory_bytes", run.memory},
              {"operators", Json::array()},
              {"collectives", Json::array()}};
  for (const KernelSum& sum : kernel_sums(run)) {
    all["operators"].push_back(
        {{"operator", sum.name}, {"calls", sum.calls}, {"seconds", sum.seconds}});
  }
  for (const CollectiveSum& sum : collective_sums(run)) {
    all["collectives"].push_back({{"operator", sum.name},
                                  {"axes", sum.axes},
                                  {"calls", sum.calls},
                                  {"received_bytes", sum.received},
                                  {"seconds", sum.seconds},
                                  {"waiting_seconds", sum.waited}});
  }
  return json_text(all, 2) + "\n";
}

void write_planned_trace(const PlannedRun& run, const std::string& file) {
  const auto places = graph::places_of(run.program);
  const auto nanoseconds = [](double seconds) {
    return static_cast<std::int64_t>(1e9 * seconds + 0.5);
  };
  const auto slice_of = [&](const StepSpan& span, std::string_view category) {
    const Instruction& i = *places[span.place];
    const ProgramScope& scope = run.program.scopes[i.scope];
    TraceSlice slice{.category = category,
                     .name = kernel_name(i),
                     .begin = nanoseconds(span.begin),
                     .end = std::max(nanoseconds(span.end), nanoseconds(span.begin) + 1)};
    slice.module = scope.module.empty() ? nullptr : interned_name(scope.module);
    slice.backward = scope.phase == Phase::backward || scope.phase == Phase::recomputation;
    return slice;
  };
  const auto of_collective = [&](const StepSpan& span, std::string_view category) {
    const Instruction& i = *places[span.place];
    TraceSlice slice = slice_of(span, category);
    slice.collective = true;
    slice.bytes = graph::received_bytes(run.program, i);
    slice.ranks = {run.program.rank};
    slice.group = graph::group_of(i) == nullptr ? "" : axes_of(run.mesh, *graph::group_of(i));
    slice.sequence = static_cast<std::uint64_t>(span.place.number);
    return slice;
  };
  RankTrace trace;
  for (const StepSpan& span : run.step.computing) {
    trace.slices.push_back(slice_of(span, "operator"));
  }
  for (const StepSpan& span : run.step.waiting) {
    trace.slices.push_back(of_collective(span, "wait"));
  }
  std::ranges::sort(trace.slices, {}, &TraceSlice::begin);
  for (const StepSpan& span : run.step.communicating) {
    if (span.end > span.begin) {
      trace.streamed.push_back(
          {.slice = of_collective(span, "stream"), .queued = nanoseconds(span.begin)});
    }
  }
  write_trace_file("--trace", file, {.first_step = 1, .last_step = 1, .mesh = to_string(run.mesh)},
                   {trace_events(trace, 0, 0)});
}

}  // namespace tessera::app
