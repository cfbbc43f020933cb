// Whether the programs that a step was split into leave what the step leaves.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :across_parts;
import :across_steps;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Programs one after the other, as one. Inputs and variables of a step have its number.
class Sequence {
 public:
  explicit Sequence(int rank) {
    program_.rank = rank;
    program_.sections.push_back({.kind = SectionKind::step});
  }

  void add(const Part& part) {
    ++step_;
    const Program& added = part.program;
    number_of_ = ByTensor<TensorIndex>(added.tensors.size());
    for (const auto& [name, input] : added.inputs) {
      const std::string own = is_given_anew(input.role) ? of_step(name, step_) : name;
      if (!program_.inputs.contains(own)) {
        program_.inputs[own] = input;
        program_.inputs[own].tensor = number_like(added, input.tensor);
      }
      number_of_[input.tensor] = program_.inputs[own].tensor;
    }
    for (std::size_t s = 0; s < added.sections.size(); ++s) {
      add_section(part, s);
    }
    for (const auto& [name, number] : added.outputs) {
      program_.outputs[of_step(name, step_)] = number_of_[number];
    }
  }

  const Program& program() const { return program_; }
  Values values(ValueNames& names) const {
    const std::unique_ptr<Analysis> analysis = verified(program_);
    return values_of(program_, *analysis, names, carries_);
  }

 private:
  static std::string of_step(std::string_view name, int step) {
    return fmt::format("{}.{}", step, name);
  }

  TensorIndex number_like(const Program& added, TensorIndex number) {
    return program_.tensors.add(added.tensors[number]);
  }

  void add_section(const Part& part, std::size_t s) {
    std::vector<Instruction>& into = program_.sections.back().instructions;
    const auto push = [&](Instruction i) {
      into.push_back(std::move(i));
      ++places_;
    };
    const auto renew = [&](std::size_t at) {
      const auto renewed = s < part.renewals.size()
                               ? part.renewals[s].find(at)
                               : std::map<std::size_t, std::vector<TensorIndex>>::const_iterator();
      if (s >= part.renewals.size() || renewed == part.renewals[s].end()) {
        return;
      }
      for (const TensorIndex number : renewed->second) {
        push({.kind = Kind::release, .in = {number_of_[number]}});
        push({.kind = Kind::restore, .in = {number_of_[number]}});
      }
    };
    const std::vector<Instruction>& all = part.program.sections[s].instructions;
    for (std::size_t at = 0; at < all.size(); ++at) {
      renew(at);
      if (s < part.carries.size() && std::ranges::binary_search(part.carries[s], at)) {
        carries_.push_back(places_);
      }
      push(of_this_step(part, all[at]));
    }
    renew(all.size());
  }

  Instruction of_this_step(const Part& part, Instruction i) {
    for (TensorIndex& number : i.in) {
      number = number.exists() ? number_of_[number] : number;
    }
    for (TensorIndex& number : i.out) {
      if (number.exists()) {
        number = number_of_[number] = number_like(part.program, number);
      }
    }
    for (Binding& binding : i.bindings) {
      binding.value.rename([&](const std::string& name) {
        const auto before = part.before.find(name);
        return before == part.before.end() ? of_step(name, step_)
                                           : of_step(before->second, step_ - 1);
      });
    }
    i.scope = ScopeIndex(0);
    return i;
  }

  Program program_;
  std::vector<PlaceIndex> carries_;
  ByTensor<TensorIndex> number_of_;
  int step_ = 0;
  PlaceIndex places_ = PlaceIndex(0);
};

[[noreturn]] void differ(const std::string& wrong) {
  fail({.thing = "program", .wrong = "its update cannot be left to the next step: " + wrong});
}

void compare_steps(const Sequence& steps, const Sequence& parts) {
  ValueNames names;
  const Values expected = steps.values(names);
  const Values got = parts.values(names);
  if (expected.ordered != got.ordered) {
    const auto at = static_cast<std::size_t>(
        std::ranges::mismatch(expected.ordered, got.ordered).in2 - got.ordered.begin());
    differ("communication or a check of the host is missing, new or in another order: " +
           (at < got.ordered.size() ? place_in_words(parts.program(), got.ordered_places[at])
                                    : std::string("at the end")));
  }
  for (const auto& [name, value] : expected.left.back()) {
    const auto found = got.left.back().find(name);
    if (found == got.left.back().end() || found->second != value) {
      differ(fmt::format("{} has other values", name));
    }
  }
}

}  // namespace

void check_parts(const Program& step, const Parts& parts) {
  const auto sequence = [&](std::initializer_list<const Part*> all) {
    Sequence made(step.rank);
    for (const Part* const part : all) {
      made.add(*part);
    }
    return made;
  };
  const Part whole{.program = step};
  compare_steps(sequence({&whole}), sequence({&parts.first, &parts.update}));
  const Sequence twice = sequence({&whole, &whole});
  compare_steps(twice, sequence({&parts.first, &parts.last}));
  compare_steps(twice, sequence({&parts.first, &parts.middle, &parts.update}));
}

}  // namespace tessera::graph
