// Parts of a program, and its text.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.calls;

namespace tessera {
namespace {

/// " [Shard(0)]", with the mesh's number where it is not the first one.
std::string layout_of(const Program& program, const ProgramTensor& x) {
  if (x.spec == nullptr) {
    return {};
  }
  const auto mesh = std::ranges::find(program.meshes, x.spec->layout.mesh());
  return fmt::format(
      " {}{}", to_string(x.spec->layout),
      mesh == program.meshes.begin() ? "" : fmt::format(" on {}", mesh - program.meshes.begin()));
}

std::string typed(const Program& program, TensorIndex number) {
  if (!number.exists()) {
    return to_text(number);
  }
  const ProgramTensor& x = program.tensors[number];
  const bool booked = x.category != MemoryCategory::other;
  return fmt::format("{}: {}{}{}{}{}{}", to_text(number), name_of(x.dtype), to_string(x.shape),
                     layout_of(program, x), booked ? " " : "", booked ? name_of(x.category) : "",
                     x.elsewhere ? " elsewhere" : "");
}

template <class List, class F>
std::string listed(const List& list, F text) {
  std::string all;
  for (const auto& one : list) {
    all += fmt::format("{}{}", all.empty() ? "" : ", ", text(one));
  }
  return all;
}

std::string numbers(const std::vector<double>& values) {
  return listed(values, [](double v) { return fmt::format("{}", v); });
}

/// "mul(%3, %4; alpha=1)".
std::string called(const Instruction& i) {
  using Kind = Instruction::Kind;
  const std::string operands = listed(i.in, [](TensorIndex one) { return to_text(one); });
  switch (i.kind) {
    case Kind::alias:
      return fmt::format("memory.alias({}; strides={}, offset={})", operands, to_string(i.strides),
                         i.offset);
    case Kind::empty:
      return "memory.empty()";
    case Kind::full:
      return fmt::format("memory.full({})", numbers(i.values));
    case Kind::values:
      return fmt::format("memory.values({})", numbers(i.values));
    case Kind::release:
      return fmt::format("memory.release({})", operands);
    case Kind::restore:
      return fmt::format("memory.restore({})", operands);
    case Kind::check:
      if (i.is_guard()) {
        return fmt::format("host.guard({}; {}, {})", operands, i.guard, numbers(i.values));
      }
      return fmt::format("host.check({}; {})", operands, numbers(i.values));
    case Kind::call:
      break;
  }
  const std::string arguments = print_arguments(*i.op, i.attributes);
  return fmt::format("{}({}{}{})", i.op->name, operands, arguments.empty() ? "" : "; ", arguments);
}

}  // namespace

std::string to_text(TensorIndex tensor) {
  return tensor.exists() ? fmt::format("%{}", tensor.number) : "-";
}

bool Instruction::writes(std::size_t operand) const {
  return kind == Kind::call && op->writes(op->place_of(operand, in.size()).operand);
}

std::string to_text(const Program& program, const Instruction& i) {
  std::string text = listed(i.out, [&](TensorIndex one) { return typed(program, one); });
  text += fmt::format("{}{}", text.empty() ? "" : " = ", called(i));
  if (!i.bindings.empty()) {
    text +=
        fmt::format(" {{{}}}", listed(i.bindings, [&](const Binding& b) {
                      return fmt::format(
                          "{}=${}", i.op->arguments->fields[static_cast<std::size_t>(b.field)].name,
                          tessera::to_text(b));
                    }));
  }
  const ProgramScope& scope = program.scopes[i.scope];
  if (i.scope != ScopeIndex(0)) {
    text += fmt::format(
        " @ {}{}{}{}{}{}{}", scope.phase == Phase::none ? "-" : name_of(scope.phase),
        scope.module.empty() ? "" : " in ", scope.module, scope.operation.empty() ? "" : " by ",
        scope.operation, scope.part.empty() ? "" : " during ", scope.part);
  }
  return text;
}

std::string Program::to_text() const {
  std::string text = fmt::format("tessera program 2\nrank {}\n", rank);
  if (level == ModeLevel::above_distribution) {
    text += "level above distribution\n";
  }
  for (const DeviceMesh& mesh : meshes) {
    text += to_string(mesh) + "\n";
  }
  for (const std::string& name : numbers) {
    text += fmt::format("number {}\n", name);
  }
  for (const std::string& name : counts) {
    text += fmt::format("count {}\n", name);
  }
  for (const auto& [name, drawn] : draws) {
    text += fmt::format("stream {} draws {}\n", name, drawn);
  }
  for (const auto& [name, value] : guards) {
    text += fmt::format("guard {} = {}\n", name, value);
  }
  for (const auto& [number, name] : inputs_in_order()) {
    const ProgramInput& input = inputs.at(name);
    const std::string role = input.role == Role::other  ? std::string()
                             : input.role == Role::rows ? fmt::format("rows {} ", input.micro_batch)
                                                        : fmt::format("{} ", name_of(input.role));
    text += fmt::format("input {}{} = {}\n", role, typed(*this, number), name);
  }
  for (const ProgramUpdate& update : updates) {
    text += fmt::format("optimizer {} updates {}\n", update.optimizer, update.input);
  }
  for (const Section& section : sections) {
    text += fmt::format("section {}\n", name_of(section.kind));
    for (const Instruction& instruction : section.instructions) {
      text += fmt::format("  {}\n", tessera::to_text(*this, instruction));
    }
  }
  for (const auto& [name, number] : outputs) {
    text += fmt::format("output {} = {}\n", tessera::to_text(number), name);
  }
  for (const auto& [output, input] : gradients) {
    text += fmt::format("gradient of {} = {}\n", input, output);
  }
  return text + "end\n";
}

std::string to_text(const Binding& binding) {
  return binding.stream.empty()
             ? binding.value.text()
             : fmt::format("{}{}", binding.stream,
                           binding.offset == 0 ? "" : fmt::format("{:+}", binding.offset));
}

std::string read_in_words(const Program& program, const Instruction& check) {
  const ProgramScope& scope = program.scopes[check.scope];
  std::string what = "an input";
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      if (&i == &check) {
        return what + (scope.module.empty() ? std::string()
                                            : fmt::format(" in module '{}'", scope.module));
      }
      if (i.op != nullptr && std::ranges::find(i.out, check.in[0]) != i.out.end()) {
        const std::string& written = program.scopes[i.scope].operation;
        what = fmt::format("a result of {}", written.empty() ? i.op->name : written);
      }
    }
  }
  return what;
}

bool operator==(const ProgramInput& a, const ProgramInput& b) {
  return a.tensor == b.tensor && a.role == b.role && a.micro_batch == b.micro_batch;
}

std::map<TensorIndex, std::string> Program::inputs_in_order() const {
  std::map<TensorIndex, std::string> in_order;
  for (const auto& [name, input] : inputs) {
    in_order[input.tensor] = name;
  }
  return in_order;
}

bool operator==(const ProgramUpdate& a, const ProgramUpdate& b) {
  return a.optimizer == b.optimizer && a.input == b.input;
}

std::size_t Program::mesh(const DeviceMesh& mesh) {
  const auto same = std::ranges::find(meshes, mesh);
  const auto number = static_cast<std::size_t>(same - meshes.begin());
  if (same == meshes.end()) {
    meshes.push_back(mesh);
  }
  return number;
}

ScopeIndex Program::scope(const ProgramScope& scope) {
  const auto same = std::ranges::find_if(scopes, [&](const ProgramScope& other) {
    return other.phase == scope.phase && other.module == scope.module &&
           other.operation == scope.operation && other.part == scope.part;
  });
  return same == scopes.end() ? scopes.add(scope) : scopes.key_of(same);
}

std::vector<std::string> Program::written() const {
  std::map<TensorIndex, std::string> names = inputs_in_order();  // of a tensor, or of a view of it
  std::set<std::string> all;
  for (const Section& section : sections) {
    for (const Instruction& i : section.instructions) {
      const bool view =
          i.kind == Instruction::Kind::alias || (i.op != nullptr && i.op->view != nullptr);
      if (view && names.contains(i.in[0])) {
        for (const TensorIndex out : i.out) {
          names[out] = names[i.in[0]];
        }
      }
      const bool waits = i.op != nullptr && i.op->communicates == Communicates::waits;
      for (std::size_t k = 0; !waits && k < i.in.size(); ++k) {
        if (names.contains(i.in[k]) && i.writes(k)) {
          all.insert(names[i.in[k]]);
        }
      }
    }
  }
  return {all.begin(), all.end()};
}

Tensor aliased(const Instruction& i, const ResultShape& shape, const Tensor& base) {
  const std::int64_t first = base.offset() * static_cast<std::int64_t>(size_of(base.dtype())) /
                             static_cast<std::int64_t>(size_of(shape.dtype));
  return from_storage(base.impl()->storage, shape.shape, i.strides, first + i.offset, shape.dtype,
                      base.device());
}

ByTensor<bool> read_by_peers(const Program& program) {
  ByTensor<bool> peers_read(program.tensors.size(), false);
  const auto is_source = [&](TensorIndex number) { return number.exists() && peers_read[number]; };
  for (auto section = program.sections.rbegin(); section != program.sections.rend(); ++section) {
    for (auto i = section->instructions.rbegin(); i != section->instructions.rend(); ++i) {
      const bool reduces = i->kind == Instruction::Kind::call &&
                           (i->op->communicates == collective::CallKind::all_reduce ||
                            i->op->communicates == collective::CallKind::reduce_scatter);
      const bool aliases = i->kind == Instruction::Kind::alias && is_source(i->out[0]);
      for (const TensorIndex number : i->in) {
        if (number.exists() && (reduces || aliases)) {
          peers_read[number] = true;
        }
      }
      if (reduces && i->op->communicates == collective::CallKind::all_reduce) {
        for (const TensorIndex number : i->out) {
          if (number.exists()) {
            peers_read[number] = true;  // a piece of the result
          }
        }
      }
    }
  }
  return peers_read;
}

}  // namespace tessera
