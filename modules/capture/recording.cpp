// Compares two recordings of a step, and finds what of it follows from variables.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.capture;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.program;
import :recording;

namespace tessera {
namespace {

using Values = std::vector<ArgumentValue>;

Values arguments_of(const Instruction& i) {
  return i.op != nullptr && i.op->arguments != nullptr ? i.op->arguments->values(i.attributes)
                                                       : Values();
}

bool same_but_arguments(const Instruction& a, const Instruction& b) {
  return a.kind == b.kind && a.op == b.op && a.in == b.in && a.out == b.out &&
         a.strides == b.strides && a.offset == b.offset && a.guard == b.guard;
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

/// Whether a field has random numbers; those that a call never took, as of a dropout of 0, are
/// none.
bool is_random(const Instruction& i, std::size_t field) {
  if (i.op->arguments->fields[field].type != ArgumentType<RandomNumbers>::name) {
    return false;
  }
  const RandomNumbers numbers =
      ArgumentType<RandomNumbers>::from_value(i.op->arguments->values(i.attributes)[field]);
  return numbers.seed != 0 || numbers.stream != 0 || numbers.offset != 0 || numbers.stride != 0;
}

const Binding* binding_of(const Instruction& i, std::size_t field) {
  const auto found = std::ranges::find(i.bindings, static_cast<int>(field), &Binding::field);
  return found == i.bindings.end() ? nullptr : &*found;
}

[[noreturn]] void unexplained(const Program& program, const Instruction& i, std::size_t field,
                              const std::string& how, const StepVariables& variables) {
  fail({.thing = "record",
        .wrong = fmt::format("argument '{}' of {} {}, and no variable of the step explains it "
                             "(there are: {})",
                             i.op->arguments->fields[field].name, to_text(program, i), how,
                             names_of(variables)),
        .advice = "pass what changes as an input of the step, or compute it from the step's "
                  "numbers without Number::value()"});
}

/// Error: an argument differs that does not follow from variables, or follows in another way.
void check_explained(const Program& program, const Instruction& first, const Instruction& second,
                     const StepVariables& variables) {
  const Values before = arguments_of(first);
  const Values after = arguments_of(second);
  for (std::size_t f = 0; f < after.size(); ++f) {
    const Binding* const was = binding_of(first, f);
    const Binding* const is = binding_of(second, f);
    const bool same_source =
        was == nullptr || is == nullptr ? was == is : to_text(*was) == to_text(*is);
    if (!same_source || (is == nullptr && before[f] != after[f])) {
      unexplained(program, second, f,
                  fmt::format("differs from step to step ({}, then {})", text_of_argument(first, f),
                              text_of_argument(second, f)),
                  variables);
    }
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
                           name_of(a.sections[s].kind), to_text(a, left[i]), to_text(b, right[i])));
      }
    }
    if (left.size() != right.size()) {
      differ(fmt::format("section '{}' has {} and then {} instructions",
                         name_of(a.sections[s].kind), left.size(), right.size()));
    }
  }
  if (a.updates != b.updates) {
    differ("they update other parameters");
  }
  if (a.inputs != b.inputs || a.outputs != b.outputs || a.gradients != b.gradients ||
      a.draws != b.draws) {
    differ("they have other inputs, outputs or random streams");
  }
}

}  // namespace

Program program_of(Recording recording) {
  Program& program = recording.program;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      const std::size_t fields =
          i.op == nullptr || i.op->arguments == nullptr ? 0 : i.op->arguments->fields.size();
      for (std::size_t f = 0; f < fields; ++f) {
        if (is_random(i, f) && binding_of(i, f) == nullptr) {
          unexplained(program, i, f, "has numbers of no stream", recording.variables);
        }
      }
    }
  }
  program.guards = recording.variables.guards;
  check_guards(program);
  return std::move(program);
}

Program program_of(const Recording& first, Recording second) {
  check_same(first.program, second.program);
  for (std::size_t s = 0; s < second.program.sections.size(); ++s) {
    const std::vector<Instruction>& before = first.program.sections[s].instructions;
    const std::vector<Instruction>& after = second.program.sections[s].instructions;
    for (std::size_t i = 0; i < after.size(); ++i) {
      check_explained(second.program, before[i], after[i], second.variables);
    }
  }
  return program_of(std::move(second));
}

}  // namespace tessera
