// Steps that are the same each time, as graphs of a device.
module;
#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :block;
import :steps;

namespace tessera::graph {
namespace {

using StepKind = PlannedStep::Kind;

/// A graph of fewer calls is queued no faster than these.
constexpr std::size_t least_calls = 2;

bool communicates(const Op& op) {
  return op.communicates != Communicates::none || op.issues || op.completes;
}

}  // namespace

bool PlannedSteps::is_the_same(TensorIndex number) const {
  if (!number.exists() || in_block(number)) {
    return true;
  }
  const MemoryIndex memory = shadow_.memory(number);
  return memory.exists() && shadow_.memories[memory].is_input && !changing_[memory];
}

std::string_view PlannedSteps::alone(const PlannedStep& step) const {
  const Instruction* const i = step.source;
  switch (step.kind) {
    case StepKind::check:
      return "the host reads a value";
    case StepKind::call:
    case StepKind::create:
    case StepKind::release:
    case StepKind::restore:
    case StepKind::nothing:
      return "memory is new in each step";
    case StepKind::kernel:
    case StepKind::chain:
    case StepKind::copy:
    case StepKind::fill:
      break;
  }
  if (step.kind == StepKind::kernel && communicates(*i->op)) {
    return "ranks communicate";
  }
  if (step.kind == StepKind::kernel && step.kernel.run == kernel_on_host) {
    return "the host computes";
  }
  const auto has_bindings = [](const Instruction& call) { return !call.bindings.empty(); };
  if (step.kind == StepKind::chain
          ? std::ranges::any_of(compiled_->chain(step.chain).calls,
                                [&](const auto& call) { return has_bindings(*call.instruction); })
          : has_bindings(*i)) {
    return "a number changes";
  }
  const auto same = [&](TensorIndex number) { return is_the_same(number); };
  if (!step.allocated.empty() || !step.dropped.empty() || step.place_calls != nullptr ||
      !std::ranges::all_of(step.in_numbers, same) || !std::ranges::all_of(step.out_numbers, same)) {
    return "memory is new in each step";
  }
  const bool needs_more =
      step.kind == StepKind::kernel &&
      step.kernel.workspace_bytes({*i->op, step.in, i->attributes, step.workspace}, step.out) >
          step.workspace.size();
  return needs_more ? "memory is new in each step" : "";
}

void PlannedSteps::find_graphs(std::size_t section) {
  recorded_.resize(sections_.size());
  runs_.resize(sections_.size());
  changing_.resize(shadow_.memories.size());
  for (const auto& [name, input] : program_.inputs) {
    if (is_given_anew(input.role)) {
      changing_[shadow_.memory(input.tensor)] = true;
    }
  }
  // The first run has found algorithms and functions, which a recording must not.
  if (++runs_[section] != 2) {
    return;
  }
  const std::vector<PlannedStep>& steps = sections_[section];
  for (std::size_t first = 0; first < steps.size();) {
    std::size_t last = first;
    while (last < steps.size() && alone(steps[last]).empty() &&
           (last == first || steps[last].part == nullptr)) {
      ++last;
    }
    if (last - first >= least_calls) {
      recorded_[section].push_back({.first = first, .last = last});
    }
    first = std::max(last, first + 1);
  }
}

PlannedSteps::Recorded* PlannedSteps::graph_at(std::size_t section, std::size_t step) {
  if (section >= recorded_.size()) {
    return nullptr;
  }
  const auto found = std::ranges::lower_bound(recorded_[section], step, {}, &Recorded::first);
  return found != recorded_[section].end() && found->first == step ? &*found : nullptr;
}

void PlannedSteps::run_graph(std::size_t section, Recorded& recorded, const Bound& bound) {
  std::vector<PlannedStep>& steps = sections_[section];
  const Stream stream = current_stream(device_);
  if (recorded.graph) {
    for (std::size_t i = recorded.first; i < recorded.last; ++i) {
      bump(steps[i]);
    }
  } else {
    recorded.graph = DeviceGraph::record(stream, [&] {
      for (std::size_t i = recorded.first; i < recorded.last; ++i) {
        execute(steps[i], bound);
      }
    });
  }
  recorded.graph.launch(stream);
}

void PlannedSteps::leave_out(TensorIndex input) {
  if (recorded_.empty()) {
    return;  // the first step after it looks at what changes
  }
  const MemoryIndex memory = shadow_.memory(input);
  if (changing_[memory]) {
    return;
  }
  changing_[memory] = true;
  for (std::size_t section = 0; section < recorded_.size(); ++section) {
    recorded_[section].clear();
    runs_[section] = std::min(runs_[section], 1);
  }
}

std::optional<PlannedGraphs> PlannedSteps::graphs() const {
  const bool found = std::ranges::any_of(runs_, [](int runs) { return runs >= 2; });
  if (!found) {
    return std::nullopt;
  }
  PlannedGraphs all;
  for (std::size_t section = 0; section < recorded_.size(); ++section) {
    for (const Recorded& one : recorded_[section]) {
      ++all.graphs;
      all.calls += static_cast<int>(one.last - one.first);
    }
    for (const PlannedStep& step : sections_[section]) {
      if (const std::string_view why = alone(step);
          !why.empty() && step.kind != StepKind::nothing) {
        ++all.alone[std::string(why)];
      }
    }
  }
  return all;
}

}  // namespace tessera::graph
