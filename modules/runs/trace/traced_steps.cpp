module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.nn;
import tessera.optim;
import tessera.parallel;

namespace tessera::runs {

std::optional<TraceRange> trace_range(const RunSpec& config, std::int64_t done) {
  const std::int64_t steps = config.train.steps;
  if (config.trace.file.empty() || done >= steps) {
    return std::nullopt;
  }
  if (config.trace.steps.empty()) {
    return TraceRange{std::min(done + 2, steps), std::min(done + 4, steps)};
  }
  const TraceRange range{config.trace.steps[0], config.trace.steps[1]};
  if (range.first <= done) {
    fail_input(
        {.where = config.place("trace.steps"),
         .wrong = fmt::format("the run continues after step {}", done),
         .expected = fmt::format("a first step of {} or more", done + 1),
         .got = fmt::format("[{}, {}]", range.first, range.last),
         .advice = "change trace.steps, or remove it to trace the run's second to fourth step"});
  }
  return range;
}

TraceSteps::TraceSteps(const RunSpec& config, std::string mesh, std::int64_t done,
                       collective::World& world)
    : config_(config), mesh_(std::move(mesh)), world_(world), range_(trace_range(config, done)) {}

void TraceSteps::before_step(std::int64_t done) {
  if (range_ && done + 1 == range_->first) {
    world_.everyone().barrier();
    recorder_ = std::make_unique<TraceRecorder>();
  }
}

bool TraceSteps::after_step(std::int64_t done, bool stops) {
  if (!recorder_ || (done < range_->last && !stops)) {
    return false;
  }
  const RankTrace trace = recorder_->finish();
  recorder_.reset();
  return write_trace(world_, trace, {.first_step = range_->first, .last_step = done, .mesh = mesh_},
                     config_.trace.file);
}

}  // namespace tessera::runs
