module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.mesh;
import tessera.tensor;

namespace tessera {
std::string to_text(const Binding& binding) {
  return binding.stream.empty()
             ? binding.value.text()
             : fmt::format("{}{}", binding.stream,
                           binding.offset == 0 ? "" : fmt::format("{:+}", binding.offset));
}

std::string read_in_words(const Program& program, const Instruction& check) {
  const ProgramScope& scope = program.scopes[static_cast<std::size_t>(check.scope)];
  std::string what = "an input";
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      if (&i == &check) {
        return what + (scope.module.empty() ? std::string()
                                            : fmt::format(" in module '{}'", scope.module));
      }
      if (i.op != nullptr && std::ranges::find(i.out, check.in[0]) != i.out.end()) {
        what = fmt::format("a result of {}", i.op->name);
      }
    }
  }
  return what;
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

int Program::scope(const ProgramScope& scope) {
  const auto same = std::ranges::find_if(scopes, [&](const ProgramScope& other) {
    return other.phase == scope.phase && other.module == scope.module;
  });
  if (same == scopes.end()) {
    scopes.push_back(scope);
    return static_cast<int>(scopes.size()) - 1;
  }
  return static_cast<int>(same - scopes.begin());
}

std::vector<std::string> Program::written() const {
  std::map<int, std::string> names;  // of a number that is an input or a view of it
  for (const auto& [name, number] : inputs) {
    names[number] = name;
  }
  std::set<std::string> all;
  for (const Section& section : sections) {
    for (const Instruction& i : section.instructions) {
      const bool view =
          i.kind == Instruction::Kind::alias || (i.op != nullptr && i.op->view != nullptr);
      if (view && names.contains(i.in[0])) {
        for (const int out : i.out) {
          names[out] = names[i.in[0]];
        }
      }
      const bool writes = i.op != nullptr && i.op->communicates != Communicates::waits;
      for (std::size_t k = 0; writes && k < i.in.size(); ++k) {
        if (names.contains(i.in[k]) && i.op->writes(i.op->place_of(k, i.in.size()).operand)) {
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

std::vector<bool> read_by_peers(const Program& program) {
  std::vector<bool> peers_read;
  peers_read.assign(program.tensors.size(), false);
  const auto is_source = [&](int number) {
    return number >= 0 && peers_read[static_cast<std::size_t>(number)];
  };
  for (auto section = program.sections.rbegin(); section != program.sections.rend(); ++section) {
    for (auto i = section->instructions.rbegin(); i != section->instructions.rend(); ++i) {
      const bool reduces = i->kind == Instruction::Kind::call &&
                           (i->op->communicates == Communicates::all_reduce ||
                            i->op->communicates == Communicates::reduce_scatter);
      const bool aliases = i->kind == Instruction::Kind::alias && is_source(i->out[0]);
      for (const int number : i->in) {
        if (number >= 0 && (reduces || aliases)) {
          peers_read[static_cast<std::size_t>(number)] = true;
        }
      }
      if (reduces && i->op->communicates == Communicates::all_reduce) {
        for (const int number : i->out) {
          if (number >= 0) {
            peers_read[static_cast<std::size_t>(number)] = true;  // a piece of the result
          }
        }
      }
    }
  }
  return peers_read;
}

}  // namespace tessera
