module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :accesses;
import :analysis;
import :analysis_state;
import :verify;
import :shadow;
import :values;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

[[noreturn]] void wrong_at(const Program& program, PlaceIndex place, const std::string& wrong) {
  fail({.thing = "program", .wrong = fmt::format("{}: {}", place_in_words(program, place), wrong)});
}

void check_numbers(const Program& program) {
  std::set<TensorIndex> defined;
  for (const auto& [name, input] : program.inputs) {
    const bool known = program.tensors.contains(input.tensor);
    if (!known || !defined.insert(input.tensor).second) {
      fail({.thing = "program",
            .wrong = fmt::format("input '{}' is {}, which is {}", name, to_text(input.tensor),
                                 known ? "another input" : "not a tensor of it")});
    }
  }
  PlaceIndex place(0);
  for (const Instruction* i : places_of(program)) {
    for (const TensorIndex number : i->in) {
      if (number.exists() && !defined.contains(number)) {
        wrong_at(program, place, to_text(number) + " is used before it is defined");
      }
    }
    for (const TensorIndex number : i->out) {
      if (number.exists() && !program.tensors.contains(number)) {
        fail({.thing = "program", .wrong = to_text(number) + " has no shape"});
      }
      if (number.exists() && !defined.insert(number).second) {
        wrong_at(program, place, to_text(number) + " is defined twice");
      }
    }
    ++place;
  }
  for (const auto& [name, number] : program.outputs) {
    if (!defined.contains(number)) {
      fail(
          {.thing = "program",
           .wrong = fmt::format("output '{}' is {}, which is not defined", name, to_text(number))});
    }
  }
}

/// Checks that values which are kept in other memory are only there between copies.
void check_elsewhere(const Program& program, const Analysis& known) {
  const Shadow& shadow = known.state().shadow;
  PlaceIndex place(0);
  for (const Instruction* i : places_of(program)) {
    for (const TensorIndex number : i->out) {
      if (number.exists() && program.tensors[number].elsewhere && i->kind != Kind::empty) {
        wrong_at(program, place, to_text(number) + " is elsewhere, and no memory.empty()");
      }
    }
    for (const TensorIndex number : i->in) {
      const bool moves =
          i->kind == Kind::call && !i->op->issues && i->op->communicates == Communicates::none;
      if (number.exists() && !moves && i->kind != Kind::alias &&
          shadow.memories[shadow.memory(number)].elsewhere) {
        wrong_at(program, place, to_text(number) + " is elsewhere, where only calls use it");
      }
    }
    ++place;
  }
  for (const Memory& memory : shadow.memories) {
    if (memory.elsewhere && memory.is_output) {
      fail({.thing = "program", .wrong = "an output of it is elsewhere"});
    }
  }
}

void check_shapes(const Program& program, const Shadow& shadow) {
  PlaceIndex place(0);
  for (const Instruction* i : places_of(program)) {
    for (const TensorIndex number : i->out) {
      if (!number.exists()) {
        continue;
      }
      const ProgramTensor& said = program.tensors[number];
      const Tensor& x = shadow.at(number);
      if (!(said.shape == x.shape()) || said.dtype != x.dtype()) {
        wrong_at(program, place,
                 fmt::format("{} has the wrong shape or type (expected {}{}, got {}{})",
                             to_text(number), name_of(x.dtype()), to_string(x.shape()),
                             name_of(said.dtype), to_string(said.shape)));
      }
    }
    ++place;
  }
}

/// States of memories while a program runs.
class MemoryStates {
 public:
  MemoryStates(const Program& program, const Analysis& known)
      : program_(program), shadow_(known.state().shadow), accesses_(known.state().accesses) {}

  void check() {
    for (const Instruction* i : places_of(program_)) {
      check_instruction(*i, accesses_[place_]);
      ++place_;
    }
    if (!in_flight_.empty()) {
      wrong_at(program_, *in_flight_.begin(), "it issues a collective, and nothing waits for it");
    }
  }

 private:
  void check_instruction(const Instruction& i, const Access& access) {
    for (const TensorIndex number : i.in) {
      const MemoryIndex memory = shadow_.memory(number);
      const bool uses = std::ranges::find(access.reads, memory) != access.reads.end() ||
                        std::ranges::find(access.writes, memory) != access.writes.end();
      if (uses && i.kind != Kind::restore && released_.contains(memory)) {
        wrong_at(program_, place_,
                 i.kind == Kind::release
                     ? fmt::format("the memory of {} is released twice", to_text(number))
                     : to_text(number) + " is used after its memory was released");
      }
    }
    if (access.issued.exists()) {
      in_flight_.erase(access.issued);
    }
    for (const PlaceIndex place : in_flight_) {
      check_in_flight(access, accesses_[place], place);
    }
    if (i.kind == Kind::call && i.op->issues) {
      in_flight_.insert(place_);
    }
    change_memory(i);
  }

  void change_memory(const Instruction& i) {
    if (i.kind == Kind::release) {
      released_.insert(access_memory(i));
    } else if (i.kind == Kind::restore && released_.erase(access_memory(i)) == 0) {
      wrong_at(program_, place_,
               fmt::format("the memory of {} is restored and was not released", to_text(i.in[0])));
    }
  }

  MemoryIndex access_memory(const Instruction& i) const { return shadow_.memory(i.in[0]); }

  void check_in_flight(const Access& access, const Access& issued, PlaceIndex place) const {
    const auto uses = [](const std::vector<MemoryIndex>& memories,
                         const std::vector<MemoryIndex>& those) {
      return std::ranges::any_of(memories, [&](MemoryIndex memory) {
        return std::ranges::find(those, memory) != those.end();
      });
    };
    const auto what = [&] { return place_in_words(program_, place); };
    if (uses(access.reads, issued.writes) || uses(access.writes, issued.writes)) {
      wrong_at(program_, place_,
               "it uses what a collective writes, before the wait; issued by " + what());
    }
    if (uses(access.writes, issued.reads)) {
      wrong_at(program_, place_,
               "it writes what a collective reads, before the wait; issued by " + what());
    }
  }

  const Program& program_;
  const Shadow& shadow_;
  const ByPlace<Access>& accesses_;
  std::set<MemoryIndex> released_;
  std::set<PlaceIndex> in_flight_;  // what has issued
  PlaceIndex place_ = PlaceIndex(0);
};

[[noreturn]] void differ(const std::string& wrong) {
  fail({.thing = "program", .wrong = "it is not the same after a pass: " + wrong});
}

[[noreturn]] void differ_in_order(const std::string& place) {
  differ("communication or a check of the host is missing, new or in another order: " + place);
}

void check_interface(const Program& before, const Program& after) {
  const auto described = [](const Program& program) {
    std::string text;
    const auto add = [&](const std::string& name, TensorIndex number, Role role, int micro_batch) {
      const ProgramTensor& x = program.tensors[number];
      text += fmt::format("{} {}{} {} {}\n", name, name_of(x.dtype), to_string(x.shape),
                          name_of(role), micro_batch);
    };
    for (const auto& [name, input] : program.inputs) {
      add(name, input.tensor, input.role, input.micro_batch);
    }
    text += '\n';
    for (const auto& [name, number] : program.outputs) {
      add(name, number, Role::other, 0);
    }
    return text;
  };
  if (described(before) != described(after) || before.gradients != after.gradients) {
    differ("it has other inputs or outputs");
  }
  if (!std::ranges::equal(before.sections, after.sections, {}, &Section::kind, &Section::kind)) {
    differ("it has other sections");
  }
  if (before.rank != after.rank || before.draws != after.draws || before.guards != after.guards ||
      before.numbers != after.numbers || before.counts != after.counts) {
    differ("it depends on other variables");
  }
  if (before.updates != after.updates) {
    differ("optimizers count steps of other parameters");
  }
}

/// Communication and checks of the host are the same, in the same order. Only a collective may be
/// missing that was made before with the same values: whoever needed its result has the first one.
void compare_order(const Program& before, const Values& left, const Program& after,
                   const Values& right) {
  const ByPlace<const Instruction*> places = places_of(before);
  std::set<ValueIndex> made;
  std::size_t k = 0;
  for (std::size_t at = 0; at < left.ordered.size(); ++at) {
    const Instruction& i = *places[left.ordered_places[at]];
    const bool is_collective = i.kind == Kind::call && i.op->communicates != Communicates::waits;
    const bool is_repeated = is_collective && !made.insert(left.ordered[at]).second;
    if (k < right.ordered.size() && left.ordered[at] == right.ordered[k]) {
      ++k;
    } else if (!is_repeated) {
      differ_in_order(k < right.ordered.size() ? place_in_words(after, right.ordered_places[k])
                                               : place_in_words(before, left.ordered_places[at]));
    }
  }
  if (k < right.ordered.size()) {
    differ_in_order(place_in_words(after, right.ordered_places[k]));
  }
}

}  // namespace

void check_roles(const Program& program) {
  for (const auto& [name, input] : program.inputs) {
    if (input.micro_batch < 0 || (input.micro_batch > 0 && input.role != Role::rows)) {
      fail({.thing = "program",
            .wrong = fmt::format("input '{}' is of micro-batch {}, and its role is {}", name,
                                 input.micro_batch, name_of(input.role)),
            .expected = "0, or more for rows"});
    }
  }
  for (const ProgramUpdate& update : program.updates) {
    const auto found = program.inputs.find(update.input);
    if (found == program.inputs.end() || found->second.role != Role::parameter) {
      fail({.thing = "program",
            .wrong = fmt::format("optimizer {} updates '{}', which is not a parameter",
                                 update.optimizer, update.input),
            .expected = "an input with the role parameter",
            .got = found == program.inputs.end()
                       ? std::string("no such input")
                       : fmt::format("the role {}", name_of(found->second.role))});
    }
  }
  for (const auto& [output, input] : program.gradients) {
    if (!program.outputs.contains(output) || !program.inputs.contains(input)) {
      fail({.thing = "program",
            .wrong = fmt::format("'{}' is the gradient of '{}'", output, input),
            .expected = "an output of an input"});
    }
  }
  const auto twice =
      std::ranges::adjacent_find(program.sections, std::ranges::greater_equal(), &Section::kind);
  if (twice != program.sections.end()) {
    fail({.thing = "program",
          .wrong = fmt::format("section '{}' is after section '{}'", name_of((twice + 1)->kind),
                               name_of(twice->kind)),
          .expected = "each section once, in the order gradients, free, update"});
  }
}

std::unique_ptr<Analysis> verified(const Program& program) {
  check_numbers(program);
  check_roles(program);
  auto known = std::make_unique<Analysis>(program);
  check_shapes(program, known->state().shadow);
  check_elsewhere(program, *known);
  MemoryStates(program, *known).check();
  check_guards(program);
  return known;
}

void verify(const Program& program) { static_cast<void>(verified(program)); }

void verify_same(const Program& before, const Program& after) {
  ValueNames names;
  compare(before, values_of(before, Analysis(before), names), after,
          values_of(after, Analysis(after), names));
}

void compare(const Program& before, const Values& left, const Program& after, const Values& right) {
  check_interface(before, after);
  compare_order(before, left, after, right);
  for (std::size_t s = 0; s < left.left.size(); ++s) {
    for (const auto& [name, value] : left.left[s]) {
      const auto found = right.left[s].find(name);
      if (found == right.left[s].end() || found->second != value) {
        differ(fmt::format("{} has other values after section '{}'", name,
                           name_of(before.sections[s].kind)));
      }
    }
  }
}

}  // namespace tessera::graph
