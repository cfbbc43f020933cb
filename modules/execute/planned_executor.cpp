module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :compiled_chains;
import :steps;

namespace tessera::graph {

struct PlannedExecutor::State {
  State(Program p, std::shared_ptr<MemoryPlace> other, bool graphs)
      : program(std::move(p)),
        elsewhere(std::move(other)),
        replay(program, elsewhere),
        device_graphs(graphs) {}

  Program program;
  std::shared_ptr<MemoryPlace> elsewhere;
  Replay replay;  // of steps that are not planned
  bool compiles = false;
  std::unique_ptr<CompiledChains> compiled;  // null: not asked for, or not yet
  std::unique_ptr<PreparedProgram> steps;
  bool device_graphs = false;
  bool planned = false;  // the running step
  /// A device that was asked about, and whether it has all kernels.
  std::optional<std::pair<Device, bool>> asked;

  bool can_be_planned_on(Device device) {
    if (!asked || !(asked->first == device)) {
      asked = {device, !(device == meta) && can_be_planned(program, device)};
    }
    return asked->second;
  }
};

PlannedExecutor::PlannedExecutor(Program program, bool compiled,
                                 std::shared_ptr<MemoryPlace> elsewhere, bool device_graphs,
                                 DeviceType kind) {
  require_lowered(program);
  state_ = std::make_unique<State>(std::move(program), std::move(elsewhere), device_graphs);
  state_->replay.watch_parts([this](const std::string& part) { enter_part(part); });
  state_->compiles = compiled;
  if (compiled && kind == DeviceType::cpu) {
    state_->compiled = std::make_unique<CompiledChains>(state_->program);
  }
}
PlannedExecutor::~PlannedExecutor() = default;

namespace {

/// On the CPU, who plans the run hears of it before.
void check_compiled(Device device, const CompiledKernels& kernels) {
  if (!(device == cpu) && !kernels.missing.empty()) {
    fail_input({.thing = "compiled kernels",
                .wrong = kernels.missing,
                .advice = "or set graph.executor to planned"});
  }
}

void check_graphs(Device device) {
  if (device == cpu || !driver_of(device).has_graphs()) {
    fail_input({.thing = "device graphs",
                .wrong = fmt::format("the device '{}' has none", to_string(device)),
                .advice = "leave them out"});
  }
}

/// Which inputs the host's memory has, where the device has its own; empty: none.
std::vector<bool> inputs_on_host(std::span<const Tensor> inputs, Device device) {
  std::vector<bool> on_host;
  if (!(device == cpu) &&
      std::ranges::any_of(inputs, [](const Tensor& x) { return x.device() == cpu; })) {
    for (const Tensor& x : inputs) {
      on_host.push_back(x.device() == cpu);
    }
  }
  return on_host;
}

}  // namespace

const Program& PlannedExecutor::program() const { return state_->program; }

void PlannedExecutor::begin_in_order(std::span<const Tensor> inputs) {
  State& s = *state_;
  const auto there =
      std::ranges::find_if(inputs, [](const Tensor& x) { return !(x.device() == cpu); });
  const Device device = there == inputs.end() ? cpu : there->device();
  s.planned = !modes_installed() && s.can_be_planned_on(device) &&
              std::ranges::all_of(inputs, [&](const Tensor& x) {
                return x.device() == device || x.device() == cpu;
              });
  if (!s.planned) {
    s.steps.reset();  // its memory would be there beside that of the calls
    s.replay.begin_in_order(inputs);
    return;
  }
  std::vector<bool> on_host = inputs_on_host(inputs, device);
  if (!s.steps || !(s.steps->device() == device) || s.steps->on_host() != on_host) {
    s.steps.reset();
    if (!on_host.empty()) {
      s.compiled.reset();  // a chain's kernel would read the host's memory
    } else if (s.compiles && !(device == cpu && s.compiled)) {
      s.compiled = std::make_unique<CompiledChains>(s.program, device);
      check_compiled(device, s.compiled->summary());
    }
    s.steps = std::make_unique<PreparedProgram>(s.program, device, s.compiled.get(),
                                                s.elsewhere.get(), std::move(on_host));
    if (s.device_graphs) {
      check_graphs(device);
      s.steps->use_graphs();
    }
  }
  s.steps->begin(inputs, [&](const std::string& name, TensorIndex number, const Tensor& x) {
    check_input(name, number, x);
  });
}

void PlannedExecutor::run(SectionKind section, const StepVariables& variables) {
  State& s = *state_;
  if (!s.planned) {
    s.replay.run(section, variables);
    return;
  }
  const NoGrad no_grad;
  ProgramPlace place{.section = section_of(section)};
  const WorkScope work([&] { return in_words(place); });
  try {
    s.steps->run(
        place, [&](const Instruction& i) { return bound(i, variables); },
        [&](const std::string& part) { enter_part(part); });
  } catch (const Error& error) {
    rethrow(error, place, s.steps->tensors());
  }
}

const Tensor& PlannedExecutor::output(const std::string& name) const {
  const State& s = *state_;
  if (!s.planned) {
    return s.replay.output(name);
  }
  const auto found = s.program.outputs.find(name);
  if (found == s.program.outputs.end() || !s.steps->tensor(found->second)) {
    fail({.thing = "replay", .wrong = fmt::format("there is no output '{}' yet", name)});
  }
  return s.steps->tensor(found->second);
}

void PlannedExecutor::end() {
  if (!state_->planned) {
    state_->replay.end();
    return;
  }
  move_streams();
  state_->steps->wait_for_fetches();
  state_->steps->end(false);
}

void PlannedExecutor::release_memory() noexcept { state_->steps.reset(); }

void PlannedExecutor::abandon() noexcept {
  state_->replay.abandon();
  if (state_->steps) {
    state_->steps->end(true);
  }
}

std::optional<PlannedMemory> PlannedExecutor::memory() const {
  return state_->steps ? std::optional(state_->steps->memory()) : std::nullopt;
}

std::optional<PlannedGraphs> PlannedExecutor::graphs() const {
  return state_->steps ? state_->steps->graphs() : std::nullopt;
}

std::optional<CompiledKernels> PlannedExecutor::compiled() const {
  const CompiledChains* const compiled = state_->compiled.get();
  return compiled == nullptr ? std::nullopt : std::optional(compiled->summary());
}

}  // namespace tessera::graph
