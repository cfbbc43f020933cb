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

using StepKind = PreparedInstruction::Kind;

/// A graph of fewer calls is queued no faster than these.
constexpr std::size_t least_calls = 2;

bool communicates(const Op& op) {
  return op.communicates != Communicates::none || op.issues || op.completes;
}

}  // namespace

StepGraphs::StepGraphs(const Program& program, const Shadow& shadow, const Block& block,
                       const CompiledChains* compiled)
    : shadow_(shadow),
      block_(block),
      compiled_(compiled),
      changing_(shadow.memories.size(), false),
      recorded_(program.sections.size()),
      runs_(program.sections.size(), 0) {
  for (const auto& [name, input] : program.inputs) {
    if (is_given_anew(input.role)) {
      changing_[shadow.memory(input.tensor)] = true;
    }
  }
}

bool StepGraphs::is_the_same(TensorIndex number) const {
  if (!number.exists()) {
    return true;
  }
  const MemoryIndex memory = shadow_.memory(number);
  const bool in_block = memory.exists() && block_.offsets[memory] >= 0;
  return in_block || (memory.exists() && shadow_.memories[memory].is_input && !changing_[memory]);
}

std::string_view StepGraphs::alone(const PreparedInstruction& step) const {
  const Instruction* const i = step.source;
  if (step.across) {
    return "the host's memory is used";
  }
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

void StepGraphs::begin(Sections sections, std::size_t section) {
  if (++runs_[section] != 2) {
    return;
  }
  const std::vector<PreparedInstruction>& steps = sections[section];
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

StepGraphs::RecordedGraph* StepGraphs::at(std::size_t section, std::size_t step) {
  const auto found = std::ranges::lower_bound(recorded_[section], step, {}, &RecordedGraph::first);
  return found != recorded_[section].end() && found->first == step ? &*found : nullptr;
}

void StepGraphs::leave_out(TensorIndex input) {
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

std::optional<PlannedGraphs> StepGraphs::summary(Sections sections) const {
  if (std::ranges::none_of(runs_, [](int runs) { return runs >= 2; })) {
    return std::nullopt;
  }
  PlannedGraphs all;
  for (std::size_t section = 0; section < recorded_.size(); ++section) {
    for (const RecordedGraph& one : recorded_[section]) {
      ++all.graphs;
      all.calls += static_cast<int>(one.last - one.first);
    }
    for (const PreparedInstruction& step : sections[section]) {
      if (const std::string_view why = alone(step);
          !why.empty() && step.kind != StepKind::nothing) {
        ++all.alone[std::string(why)];
      }
    }
  }
  return all;
}

}  // namespace tessera::graph
