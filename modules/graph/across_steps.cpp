// A step whose update is left to the next one, as programs.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.passes;
import :across_parts;
import :across_steps;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Writes the update into a program of the next step.
class UpdateWriter {
 public:
  /// `pending`: the inputs that are kept, in the order of the crossings.
  UpdateWriter(const SplitStep& step, Program& program, const std::vector<TensorIndex>& pending)
      : step_(step),
        shadow_(step.known.state().shadow),
        program_(program),
        number_of_(step.program.tensors.size()) {
    for (std::size_t k = 0; k < pending.size(); ++k) {
      base_of_[step.crossings[k].memory] = pending[k];
      number_of_[step.crossings[k].base] = pending[k];
    }
  }

  void write(const UpdateCall& call, std::vector<Instruction>& into) {
    Instruction made = step_.program.sections.back().instructions[call.instruction];
    if (!call.places.empty()) {
      cut(made, call.places);
    }
    for (TensorIndex& number : made.in) {
      number = number.exists() ? operand(number, made.scope, into) : number;
    }
    for (TensorIndex& number : made.out) {
      number = number.exists() ? fresh(number) : number;
    }
    for (Binding& binding : made.bindings) {
      binding.value.rename(before_name);
    }
    into.push_back(std::move(made));
  }

 private:
  static void cut(Instruction& made, const std::vector<std::size_t>& places) {
    const std::size_t count = made.in.size() / made.op->counts.lists;
    const std::vector<TensorIndex> in = std::exchange(made.in, {});
    for (std::size_t list = 0; list < made.op->counts.lists; ++list) {
      for (const std::size_t place : places) {
        made.in.push_back(in[list * count + place]);
      }
    }
  }

  TensorIndex fresh(TensorIndex number) {
    return number_of_[number] = program_.tensors.add(step_.program.tensors[number]);
  }

  /// A tensor of before the update is another view of what is there in this step.
  TensorIndex operand(TensorIndex number, ScopeIndex scope, std::vector<Instruction>& into) {
    if (number_of_[number].exists()) {
      return number_of_[number];
    }
    const MemoryIndex memory = shadow_.memory(number);
    const TensorIndex input = step_.input_of[memory];
    if (number == input) {
      return number;
    }
    const TensorIndex base = input.exists() ? input : base_of_.at(memory);
    const TensorIndex made = fresh(number);
    into.push_back(view_like(shadow_.at(number), base, made, scope));
    return made;
  }

  const SplitStep& step_;
  const Shadow& shadow_;
  Program& program_;
  ByTensor<TensorIndex> number_of_;             // in the next step
  std::map<MemoryIndex, TensorIndex> base_of_;  // by memory that crosses: the input
};

/// Adds the inputs that are kept, and returns them.
std::vector<TensorIndex> add_pending(const SplitStep& step, Program& program) {
  std::vector<TensorIndex> pending;
  for (const CarriedMemory& crossing : step.crossings) {
    const TensorIndex tensor = crossing.made_at.exists()
                                   ? crossing.base
                                   : program.tensors.add(step.program.tensors[crossing.base]);
    program.inputs[pending_name(pending.size())] = {.tensor = tensor, .role = Role::pending};
    pending.push_back(tensor);
  }
  return pending;
}

/// Those that bindings use.
void set_variables(const Program& step, Part& part) {
  Program& program = part.program;
  std::set<std::string> used;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      for (const Binding& binding : i.bindings) {
        const std::vector<std::string> names = binding.value.variables();
        used.insert(names.begin(), names.end());
      }
    }
  }
  const auto those_of = [&](const std::vector<std::string>& names) {
    std::vector<std::string> all;
    for (const bool before : {false, true}) {
      for (const std::string& name : names) {
        const std::string whole = before ? before_name(name) : name;
        if (used.contains(whole)) {
          all.push_back(whole);
          if (before) {
            part.before.emplace(whole, name);
          }
        }
      }
    }
    return all;
  };
  program.numbers = those_of(step.numbers);
  program.counts = those_of(step.counts);
}

class PartWriter {
 public:
  PartWriter(const SplitStep& step, const std::vector<UpdateCall>& calls)
      : step_(step), calls_(calls) {
    for (const CarriedMemory& crossing : step.crossings) {
      if (crossing.made_at.exists()) {
        made_at_[crossing.made_at] = crossing.base;
      }
    }
  }

  /// `before`: it makes the update of the step before. `own`: and its own.
  Part write(bool before, bool own) {
    Part part{.program = step_.program};
    Program& program = part.program;
    const std::vector<TensorIndex> pending = add_pending(step_, program);
    UpdateWriter update(step_, program, pending);
    auto call = before ? calls_.begin() : calls_.end();
    PlaceIndex place(0);
    for (std::size_t s = 0; s < program.sections.size(); ++s) {
      std::vector<Instruction>& into = program.sections[s].instructions;
      const bool is_left = s + 1 == program.sections.size() && !own;
      part.carries.emplace_back();
      part.renewals.emplace_back();
      for (Instruction& i : std::exchange(into, {})) {
        for (; s == 0 && call != calls_.end() && call->position <= place; ++call) {
          update.write(*call, into);
        }
        if (const auto made = made_at_.find(place); made != made_at_.end()) {
          part.renewals.back()[into.size()].push_back(made->second);
        } else if (!is_left) {
          into.push_back(std::move(i));
        }
        if (!own) {
          carry(place, pending, into, part.carries.back());
        }
        ++place;
      }
      for (; s == 0 && call != calls_.end(); ++call) {
        update.write(*call, into);
      }
    }
    set_variables(step_.program, part);
    return part;
  }

  /// The update of the step before alone.
  Part update() {
    Part part{.program = step_.program};
    Program& program = part.program;
    program.inputs.clear();
    program.outputs.clear();
    program.gradients.clear();
    program.draws.clear();
    program.guards.clear();
    program.updates.clear();
    program.sections = {{.kind = step_.program.sections.back().kind}};
    const std::vector<TensorIndex> pending = add_pending(step_, program);
    UpdateWriter update(step_, program, pending);
    std::vector<Instruction>& into = program.sections[0].instructions;
    for (std::size_t at = 0; at < step_.program.sections.back().instructions.size(); ++at) {
      update.write({.instruction = at}, into);
    }
    std::set<TensorIndex> used;
    for (const Instruction& i : into) {
      used.insert(i.in.begin(), i.in.end());
    }
    for (const auto& [name, input] : step_.program.inputs) {
      if (used.contains(input.tensor) && step_.input_of[memory(input.tensor)] == input.tensor) {
        program.inputs.emplace(name, input);
      }
    }
    part.carries.emplace_back();
    part.renewals.emplace_back();
    set_variables(step_.program, part);
    return part;
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return step_.known.memory_of(number); }

  /// Copies what is complete at this place into what is kept.
  void carry(PlaceIndex place, const std::vector<TensorIndex>& pending,
             std::vector<Instruction>& into, std::vector<std::size_t>& carries) const {
    for (std::size_t k = 0; k < pending.size(); ++k) {
      const CarriedMemory& crossing = step_.crossings[k];
      if (crossing.carry_at == place) {
        carries.push_back(into.size());
        const ScopeIndex scope = into.empty() ? ScopeIndex(0) : into.back().scope;
        into.push_back(
            {.op = &find_op("copy_"), .in = {pending[k], crossing.base}, .scope = scope});
      }
    }
  }

  const SplitStep& step_;
  const std::vector<UpdateCall>& calls_;
  std::map<PlaceIndex, TensorIndex> made_at_;  // what makes kept memory, and its tensor
};

}  // namespace

std::string pending_name(std::size_t crossing) { return fmt::format("pending.{}", crossing); }

std::string before_name(const std::string& variable) { return "before." + variable; }

Parts parts_of(const SplitStep& step, const std::vector<UpdateCall>& calls) {
  PartWriter writer(step, calls);
  return {.first = writer.write(false, false),
          .middle = writer.write(true, false),
          .last = writer.write(true, true),
          .update = writer.update()};
}

AcrossSteps split_across_steps(const Program& program) {
  const std::unique_ptr<Analysis> known = verified(program);
  const SplitStep step = split_step_of(program, *known);
  if (!step.refusal.empty()) {
    return {.refusal = step.refusal};
  }
  Parts parts = parts_of(step, update_calls(step));
  check_parts(program, parts);
  AcrossSteps all{.first = std::move(parts.first.program),
                  .middle = std::move(parts.middle.program),
                  .last = std::move(parts.last.program),
                  .update = std::move(parts.update.program)};
  for (const CarriedMemory& crossing : step.crossings) {
    all.pending_bytes += known->bytes_of(crossing.memory);
  }
  return all;
}

}  // namespace tessera::graph
