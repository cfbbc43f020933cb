module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :host_fetches;

namespace tessera {

struct Replay::State {
  Program program;
  /// By section and instruction: the tensors that nothing later uses.
  std::vector<std::vector<std::vector<TensorIndex>>> last_uses;
  /// Whether other ranks read the tensor, because ranks reduce it.
  ByTensor<bool> peers_read;
  ByTensor<Tensor> tensors;
  std::shared_ptr<MemoryPlace> elsewhere;
  std::vector<std::map<std::size_t, MemoryPlaceCalls>> place_calls;
  const Op& copy_op = find_op("copy_");
  Device device = cpu;  // of the run's inputs
  /// Parameters of the run that are kept in the host's memory, where the device has its own.
  std::set<const Storage*> host_parameters;
  bool uses_host_memory = false;  // an input is in the host's memory, where the device has its own
  std::optional<HostFetches> fetches = {};

  void find_last_uses() {
    std::set<TensorIndex> used;
    for (const auto& [name, number] : program.outputs) {
      used.insert(number);
    }
    for (const auto& [name, input] : program.inputs) {
      used.insert(input.tensor);  // they go at the end
    }
    last_uses.resize(program.sections.size());
    for (std::size_t s = program.sections.size(); s-- > 0;) {
      const std::vector<Instruction>& instructions = program.sections[s].instructions;
      last_uses[s].resize(instructions.size());
      for (std::size_t i = instructions.size(); i-- > 0;) {
        for (const std::vector<TensorIndex>* numbers :
             {&instructions[i].in, &instructions[i].out}) {
          for (const TensorIndex number : *numbers) {
            if (number.exists() && used.insert(number).second) {
              last_uses[s][i].push_back(number);
            }
          }
        }
      }
    }
  }

  /// Whether a result of the instruction is read by other ranks.
  bool is_for_peers(const Instruction& i) const {
    return std::ranges::any_of(
        i.out, [&](TensorIndex number) { return number.exists() && peers_read[number]; });
  }

  const std::string& part_of(const Instruction& i) const { return program.scopes[i.scope].part; }
  Phase phase_of(const Instruction& i) const { return program.scopes[i.scope].phase; }

  /// Modes see an instruction within the module that it was recorded in.
  const std::string* module_of(const Instruction& i) const {
    const std::string& name = program.scopes[i.scope].module;
    return name.empty() || !modes_installed() ? nullptr : interned_name(name);
  }

  bool is_elsewhere(TensorIndex number) const { return program.tensors[number].elsewhere; }

  /// Executes an instruction of a section, and what the other memory is asked for around it.
  void execute(std::size_t section, std::size_t i, const StepVariables& variables) {
    const Instruction& instruction = program.sections[section].instructions[i];
    const auto asked = place_calls[section].find(i);
    if (asked == place_calls[section].end() || elsewhere == nullptr || device == meta) {
      execute(instruction, variables);
      return;
    }
    for (const TensorIndex number : asked->second.fetched) {
      elsewhere->fetch(tensors[number]);
    }
    execute(instruction, variables);
    for (const TensorIndex number : asked->second.put_away) {
      elsewhere->put_away(tensors[number]);
    }
  }

  /// Takes the inputs of a run. Some may be in the host's memory; the others are on its device.
  void take(std::span<const Tensor> inputs) {
    tensors = ByTensor<Tensor>(program.tensors.size());
    host_parameters.clear();
    const auto there =
        std::ranges::find_if(inputs, [](const Tensor& x) { return !(x.device() == cpu); });
    device = there == inputs.end() ? cpu : there->device();
    uses_host_memory = false;
    std::size_t at = 0;
    for (const auto& [name, input] : program.inputs) {
      const Tensor& x = inputs[at++];
      tensors[input.tensor] = x;
      if (device == cpu || device == meta || !(x.device() == cpu)) {
        continue;
      }
      uses_host_memory = true;
      if (input.role == Role::parameter) {
        host_parameters.insert(&local_of(x).storage());
      }
    }
    if (uses_host_memory) {
      if (!fetches) {
        fetches.emplace(program, fetched_ahead);
      }
      fetches->begin_on(device);
    }
  }

  bool is_host_parameter(const Tensor& x) const {
    return x && x.device() == cpu && host_parameters.contains(&local_of(x).storage());
  }

  /// Where a call computes: where it writes; else on the device, unless all that it reads is in the
  /// host's memory and no parameter (a norm of gradients that are kept there).
  Device place_of(const Instruction& i) const {
    if (i.op->in_place) {
      return tensors[i.in[0]].device();
    }
    bool on_host = false;
    for (const TensorIndex number : i.in) {
      if (!number.exists()) {
        continue;
      }
      const Tensor& x = tensors[number];
      if (!(x.device() == cpu) || is_host_parameter(x)) {
        return device;
      }
      on_host = true;
    }
    return on_host ? cpu : device;
  }

  /// Executes a call with copies of the operands that are in other memory than it computes in; what
  /// it writes there is copied back.
  void call_across_memories(const Instruction& i, const Attributes& arguments) {
    struct MovedOperand {
      TensorIndex number;
      Tensor original;
      bool written = false;
    };
    std::vector<MovedOperand> moved;
    const Device place = place_of(i);
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const TensorIndex number = i.in[k];
      if (!number.exists()) {
        continue;
      }
      Tensor& x = tensors[number];
      if (i.writes(k) && is_host_parameter(x)) {
        fetches->wait_for(local_of(x).storage());
      }
      if (!(x.device() == place)) {
        moved.push_back({number, x, i.writes(k)});
        Tensor fetched = is_host_parameter(x) ? fetches->taken(number) : Tensor();
        x = fetched ? std::move(fetched) : copied_to(x, place);
      }
    }
    tessera::execute(program, i, arguments, tensors, place);
    for (MovedOperand& one : moved) {
      const Tensor changed = std::exchange(tensors[one.number], std::move(one.original));
      if (one.written) {
        const Tensor& original = tensors[one.number];
        call_kernel(copy_op, std::array{original, copied_to(changed, original.device())}, {});
      }
    }
  }

  void execute(const Instruction& i, const StepVariables& variables) {
    std::optional<PeersReadScope> scope;
    if (is_for_peers(i)) {
      scope.emplace();
    }
    if (i.kind == Instruction::Kind::empty && is_elsewhere(i.out[0])) {
      const ProgramTensor& x = program.tensors[i.out[0]];
      tensors[i.out[0]] = allocate_elsewhere(elsewhere.get(), x, device);
      return;
    }
    const Attributes arguments = i.bindings.empty() ? i.attributes : Executor::bound(i, variables);
    if (uses_host_memory && i.kind == Instruction::Kind::call && i.op->view == nullptr) {
      call_across_memories(i, arguments);
    } else {
      tessera::execute(program, i, arguments, tensors, device);
    }
  }
};

Replay::Replay(Program program, std::shared_ptr<MemoryPlace> elsewhere)
    : state_(std::make_unique<State>()) {
  if (program.rank != current_rank()) {
    fail({.thing = "replay",
          .wrong = fmt::format("the program is that of rank {}", program.rank),
          .expected = fmt::format("rank {}", current_rank()),
          .advice = "each rank has its own"});
  }
  state_->program = std::move(program);
  state_->find_last_uses();
  state_->peers_read = read_by_peers(state_->program);
  state_->elsewhere = std::move(elsewhere);
  state_->place_calls = memory_place_calls(state_->program);
}
Replay::~Replay() = default;

const Program& Replay::program() const { return state_->program; }

void Replay::begin_in_order(std::span<const Tensor> inputs) {
  std::size_t at = 0;
  for (const auto& [name, input] : state_->program.inputs) {
    check_input(name, input.tensor, inputs[at++]);
  }
  state_->take(inputs);
}

void Replay::run(SectionKind section, const StepVariables& variables) {
  State& s = *state_;
  const std::size_t at = section_of(section);
  const std::vector<Instruction>& instructions = s.program.sections[at].instructions;
  const NoGrad no_grad;
  std::size_t i = 0;
  const WorkScope work([&] { return in_words({at, i}); });
  const auto on_host = [&s](const Tensor& x) { return s.is_host_parameter(x); };
  const auto run_until = [&](std::size_t end) {
    for (; i < end; ++i) {
      try {
        if (s.uses_host_memory) {
          s.fetches->before({at, i}, s.tensors, on_host);
        }
        const ModuleScope module(s.module_of(instructions[i]));
        s.execute(at, i, variables);
      } catch (const Error& error) {
        rethrow(error, {at, i}, s.tensors);
      }
      for (const TensorIndex number : s.last_uses[at][i]) {
        s.tensors[number] = Tensor();
      }
    }
  };
  // And within its phase: those that follow one another are one phase, as they were.
  const auto run_phases_until = [&](std::size_t end) {
    while (i < end && modes_installed()) {
      const Phase phase = s.phase_of(instructions[i]);
      std::size_t next = i + 1;
      while (next < end && s.phase_of(instructions[next]) == phase) {
        ++next;
      }
      phase == Phase::none ? run_until(next) : run_phase(name_of(phase), [&] { run_until(next); });
    }
    run_until(end);
  };
  while (i < instructions.size()) {
    const std::string& part = s.part_of(instructions[i]);
    std::size_t end = i + 1;
    while (end < instructions.size() && s.part_of(instructions[end]) == part) {
      ++end;
    }
    if (part.empty()) {
      run_phases_until(end);
    } else {
      enter_part(part);
      run_phase(part, [&] { run_phases_until(end); });
    }
  }
}

const Tensor& Replay::output(const std::string& name) const {
  const auto found = state_->program.outputs.find(name);
  if (found == state_->program.outputs.end() || !state_->tensors[found->second]) {
    fail({.thing = "replay", .wrong = fmt::format("there is no output '{}' yet", name)});
  }
  return state_->tensors[found->second];
}

void Replay::end() {
  move_streams();
  if (state_->fetches) {
    state_->fetches->end();
  }
  state_->tensors.clear();
}

void Replay::abandon() noexcept {
  if (state_->fetches) {
    state_->fetches->abandon();
  }
  state_->tensors.clear();
}

}  // namespace tessera
