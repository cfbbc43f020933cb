// What two recordings of a step have in common, and what of it follows from variables.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

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
module tessera.record;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import :state;

namespace tessera {
namespace {

using Values = std::vector<ArgumentValue>;

/// One execution of an instruction.
struct Sample {
  Values arguments;
  const StepVariables* variables;
};

Values arguments_of(const Instruction& i) {
  return i.op != nullptr && i.op->arguments != nullptr ? i.op->arguments->values(i.attributes)
                                                       : Values();
}

bool same_but_arguments(const Instruction& a, const Instruction& b) {
  return a.kind == b.kind && a.op == b.op && a.in == b.in && a.out == b.out &&
         a.strides == b.strides && a.offset == b.offset && a.guard == b.guard;
}

template <class T>
const T* found(const std::map<std::string, T>& map, const std::string& name) {
  const auto at = map.find(name);
  return at == map.end() ? nullptr : &at->second;
}

/// The stream that an argument's numbers come from, and how far from its beginning.
std::optional<std::pair<std::string, std::int64_t>> stream_of(const ArgumentValue& value,
                                                              const StepVariables& variables) {
  const RandomNumbers numbers = ArgumentType<RandomNumbers>::from_value(value);
  for (const auto& [name, stream] : variables.streams) {
    if (stream.seed == numbers.seed && stream.stream == numbers.stream) {
      return std::pair(name, static_cast<std::int64_t>(numbers.offset - stream.offset));
    }
  }
  return std::nullopt;
}

/// The variable that a field is in all samples.
std::optional<Binding> explained(const std::vector<Sample>& samples, std::size_t field,
                                 std::string_view type) {
  const auto value = [&](const Sample& s) -> const ArgumentValue& { return s.arguments[field]; };
  Binding binding{.field = static_cast<int>(field)};
  const StepVariables& first = *samples[0].variables;
  if (type == ArgumentType<RandomNumbers>::name) {
    const auto drawn = stream_of(value(samples[0]), first);
    const bool all = drawn && std::ranges::all_of(samples, [&](const Sample& s) {
                       return stream_of(value(s), *s.variables) == drawn;
                     });
    if (!all) {
      return std::nullopt;
    }
    binding.variable = drawn->first;
    binding.offset = drawn->second;
    return binding;
  }
  if (type == ArgumentType<double>::name) {
    for (const auto& [name, unused] : first.numbers) {
      const bool all = std::ranges::all_of(samples, [&](const Sample& s) {
        const double* const number = found(s.variables->numbers, name);
        return number != nullptr && value(s) == ArgumentValue(*number);
      });
      if (all) {
        binding.variable = name;
        return binding;
      }
    }
    return std::nullopt;
  }
  for (const auto& [name, count] : first.counts) {
    const std::int64_t* const number = std::get_if<std::int64_t>(&value(samples[0]));
    const bool all =
        number != nullptr && std::ranges::all_of(samples, [&](const Sample& s) {
          const std::int64_t* const other = found(s.variables->counts, name);
          return other != nullptr && value(s) == ArgumentValue(*other + (*number - count));
        });
    if (all) {
      binding.variable = name;
      binding.offset = *number - count;
      return binding;
    }
  }
  return std::nullopt;
}

std::string text_of_argument(const Instruction& i, std::size_t field) {
  const std::string text = print_arguments(*i.op, i.attributes);
  const std::string name(i.op->arguments->fields[field].name);
  const std::size_t at = (", " + text).find(", " + name + "=");
  return text.substr(at, text.find(", ", at) - at);
}

std::string names_of(const StepVariables& variables) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables.numbers) {
    names.push_back(name);
  }
  for (const auto& [name, value] : variables.counts) {
    names.push_back(name);
  }
  for (const auto& [name, value] : variables.streams) {
    names.push_back("stream " + name);
  }
  return names.empty() ? "none" : join_words(names);
}

/// Finds what the dynamic arguments of an instruction follow from. `others`: its other executions.
void add_bindings(Instruction& made, const StepVariables& variables, const Program& program,
                  const std::vector<std::pair<const Instruction*, const StepVariables*>>& others) {
  if (made.op == nullptr || made.op->arguments == nullptr) {
    return;
  }
  std::vector<Sample> samples{{arguments_of(made), &variables}};
  for (const auto& [other, values] : others) {
    samples.push_back({arguments_of(*other), values});
  }
  const auto& fields = made.op->arguments->fields;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const bool random = fields[f].type == ArgumentType<RandomNumbers>::name;
    const bool equal = std::ranges::all_of(
        samples, [&](const Sample& s) { return s.arguments[f] == samples[0].arguments[f]; });
    if (equal && !random) {
      continue;
    }
    const auto binding =
        fields[f].dynamic || random ? explained(samples, f, fields[f].type) : std::nullopt;
    if (!binding) {
      const auto other = std::ranges::find_if(others, [&](const auto& o) {
        return random || arguments_of(*o.first)[f] != samples[0].arguments[f];
      });
      fail({.thing = "record",
            .wrong = fmt::format("argument '{}' of {} differs from step to step ({}, then {}), and "
                                 "no variable of the step explains it (there are: {})",
                                 fields[f].name, to_text(program, made),
                                 text_of_argument(*other->first, f), text_of_argument(made, f),
                                 names_of(variables)),
            .advice = "pass what changes as an input of the step"});
    }
    made.bindings.push_back(*binding);
  }
}

constexpr const char* same_calls =
    "only steps that execute the same calls on the same shapes can be replayed";

[[noreturn]] void differ(const std::string& what, const char* advice = same_calls) {
  fail({.thing = "record",
        .wrong = fmt::format("two steps are not the same program: {}", what),
        .advice = advice});
}

void check_same(const Program& a, const Program& b) {
  if (a.sections.size() != b.sections.size()) {
    differ(fmt::format("they have {} and {} sections", a.sections.size(), b.sections.size()));
  }
  for (std::size_t s = 0; s < a.sections.size(); ++s) {
    const std::vector<Instruction>& left = a.sections[s].instructions;
    const std::vector<Instruction>& right = b.sections[s].instructions;
    for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (left[i].kind == Instruction::Kind::check && same_but_arguments(left[i], right[i]) &&
          left[i].values != right[i].values) {
        differ(fmt::format("the host reads {}, which was {} and then {}",
                           read_in_words(b, right[i]), to_text(a, left[i]), to_text(b, right[i])),
               legal_read);
      }
      if (!same_but_arguments(left[i], right[i]) || left[i].values != right[i].values ||
          !(to_text(a, left[i]).substr(0, to_text(a, left[i]).find('(')) ==
            to_text(b, right[i]).substr(0, to_text(b, right[i]).find('(')))) {
        differ(fmt::format("instruction {} of section '{}' was {} and then {}", i + 1,
                           a.sections[s].name, to_text(a, left[i]), to_text(b, right[i])));
      }
    }
    if (left.size() != right.size()) {
      differ(fmt::format("section '{}' has {} and then {} instructions", a.sections[s].name,
                         left.size(), right.size()));
    }
  }
  if (a.updates != b.updates) {
    differ("they update other parameters");
  }
  if (a.inputs != b.inputs || a.outputs != b.outputs || a.draws != b.draws) {
    differ("they have other inputs, outputs or random streams");
  }
}

}  // namespace

Program program_of(const Recording& first, const Recording& second) {
  check_same(first.program, second.program);
  Program program = second.program;
  std::set<std::string> numbers;
  std::set<std::string> counts;
  for (std::size_t s = 0; s < program.sections.size(); ++s) {
    std::vector<Instruction>& instructions = program.sections[s].instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      std::vector<std::pair<const Instruction*, const StepVariables*>> others{
          {&first.program.sections[s].instructions[i], &first.variables}};
      for (const Recording* recording : {&first, &second}) {
        for (const Recording::Rehearsal& rehearsal : recording->rehearsals) {
          if (rehearsal.section != s || i < rehearsal.first ||
              i - rehearsal.first >= rehearsal.instructions.size()) {
            continue;
          }
          const Instruction& again = rehearsal.instructions[i - rehearsal.first];
          if (!same_but_arguments(again, instructions[i])) {
            differ(fmt::format("with other variables, {} is {}", to_text(program, instructions[i]),
                               to_text(program, again)));
          }
          others.emplace_back(&again, &rehearsal.variables);
        }
      }
      add_bindings(instructions[i], second.variables, program, others);
      for (const Binding& b : instructions[i].bindings) {
        if (second.variables.numbers.contains(b.variable)) {
          numbers.insert(b.variable);
        } else if (second.variables.counts.contains(b.variable)) {
          counts.insert(b.variable);
        }
      }
    }
  }
  program.numbers.assign(numbers.begin(), numbers.end());
  program.counts.assign(counts.begin(), counts.end());
  for (const auto& [name, value] : second.variables.numbers) {
    const auto differs = [&](const StepVariables& other) {
      const double* const number = found(other.numbers, name);
      return number != nullptr && *number != value;
    };
    const bool shown = differs(first.variables) ||
                       std::ranges::any_of(second.rehearsals, [&](const auto& rehearsal) {
                         return differs(rehearsal.variables);
                       });
    if (!shown) {
      program.required[name] = value;
    }
  }
  check_guards(program);
  return program;
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

}  // namespace tessera
