// Values that are dropped, and computed again before they are next used.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.record;
import :accesses;
import :analysis;
import :analysis_state;
import :block;
import :chains;
import :passes;
import :recompute;
import :recompute_plan;
import :renumbering;
import :shadow;
import :verify;

namespace tessera::graph {
namespace {

class Recomputer {
 public:
  using Plan = std::span<const Recomputation>;

  /// `plan`: by place.
  Recomputer(Program& program, const Shadow& shadow, Plan plan)
      : program_(program), plan_(plan), numbers_(program, shadow) {
    for (const Instruction* i : places_of(program)) {
      instructions_.push_back(*i);
    }
  }

  void recompute() {
    int place = 0;
    for (Section& section : program_.sections) {
      for (Instruction& i : std::exchange(section.instructions, {})) {
        const Plan here = next_at(place++);
        for (const Recomputation& again : here) {
          make(again, here, section.instructions);
        }
        made_.clear();
        numbers_.add(std::move(i), section.instructions);
      }
    }
    for (auto& [name, number] : program_.outputs) {
      number = numbers_.present(number);
    }
  }

 private:
  /// The results of a recomputation, by the memory that the first call made.
  using Results = std::map<int, int>;

  /// What is made again before this place; places are asked for in their order.
  Plan next_at(int place) {
    const auto end = std::ranges::find_if(
        plan_, [&](const Recomputation& again) { return again.place != place; });
    const auto count = static_cast<std::size_t>(end - plan_.begin());
    const Plan here = plan_.first(count);
    plan_ = plan_.subspan(count);
    return here;
  }

  /// Makes a call again, after those of `here` that make its operands.
  void make(const Recomputation& again, Plan here, std::vector<Instruction>& into) {
    if (made_.contains(again.maker)) {
      return;
    }
    for (const Recomputation& other : here) {
      if (other.maker != again.maker && makes_for(other, again)) {
        make(other, here, into);
      }
    }
    const Instruction& call = instructions_[index(again.maker)];
    Instruction i = call;
    i.scope = scope_of(call);
    Results& results = made_[again.maker];
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const int source = again.sources[k];
      i.in[k] = source < 0 ? -1 : numbers_.view(call.in[k], found(source), i.scope, into);
    }
    for (std::size_t k = 0; k < i.out.size(); ++k) {
      i.out[k] = numbers_.new_number(call.out[k]);
      results[static_cast<int>(numbers_.memory(call.out[k]))] = i.out[k];
    }
    into.push_back(std::move(i));
    for (const int revived : again.revived) {
      numbers_.renew(index(revived), results.at(revived));
    }
  }

  /// Whether `first` makes an operand of `second` at the same place.
  bool makes_for(const Recomputation& first, const Recomputation& second) const {
    const Instruction& call = instructions_[index(first.maker)];
    return std::ranges::any_of(call.out, [&](int number) {
      return std::ranges::find(second.sources, static_cast<int>(numbers_.memory(number))) !=
             second.sources.end();
    });
  }

  /// The first tensor of what holds the value at present.
  int found(int source) const {
    for (const auto& [maker, results] : made_) {
      if (const auto result = results.find(source); result != results.end()) {
        return result->second;
      }
    }
    return numbers_.base(index(source));
  }

  int scope_of(const Instruction& call) {
    return program_.scope({"recomputation", program_.scopes[index(call.scope)].module});
  }

  Program& program_;
  Plan plan_;  // of the places that follow
  Renumbering numbers_;
  std::vector<Instruction> instructions_;  // of the program as it was
  std::map<int, Results> made_;            // before the instruction, by the place of the call
};

/// What a planned step needs.
struct Needs {
  std::int64_t inputs = 0;
  std::int64_t peak = 0;  // of what is alive, inputs excepted
  std::int64_t all = 0;
};

Needs needs_of(const Program& program, const Shadow& shadow, std::span<const Chain> chains = {}) {
  const Block block = block_of(program, shadow, chains);
  Needs needs{.peak = peak_bytes(shadow)};
  for (const Memory& memory : shadow.memories) {
    needs.inputs += memory.is_input ? memory.bytes : 0;
  }
  needs.all = needs.inputs + block.bytes + block.outside;
  return needs;
}

std::string in_words(std::int64_t bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

}  // namespace

void recompute_cheap(Program& program, const Analysis& known) {
  const std::vector<Recomputation> plan = plan_recompute(program, known, {});
  Recomputer(program, known.state().shadow, plan).recompute();
}

std::int64_t planned_bytes(const Program& program, bool compiled) {
  const Shadow shadow = shadow_of(program);
  if (!compiled) {
    return needs_of(program, shadow).all;
  }
  const std::vector<Chain> chains = chains_of(program, shadow);
  return needs_of(program, shadow_of(program, chains), chains).all;
}

MemoryFit fit_memory(Program& program, std::int64_t budget) {
  const Analysis known(program);
  const Shadow& shadow = known.state().shadow;
  const Needs needs = needs_of(program, shadow);
  if (needs.all <= budget) {
    return {.bytes = needs.all};
  }
  std::int64_t least = needs.all;
  for (const bool products : {false, true}) {
    // In place, less is needed than what is alive at the peak; for workspaces and gaps in the
    // block, more: then a lower peak is tried.
    std::int64_t rest = needs.peak - (needs.all - budget);
    while (true) {
      const std::vector<Recomputation> plan = plan_recompute(
          program, known, {.bytes = std::max<std::int64_t>(0, rest), .products = products});
      Program changed = program;
      Recomputer(changed, shadow, plan).recompute();
      const std::int64_t all = planned_bytes(changed);
      least = std::min(least, all);
      if (all <= budget) {
        verify(changed);
        verify_same(program, changed);
        program = std::move(changed);
        return {.bytes = all, .calls = static_cast<int>(plan.size())};
      }
      if (rest <= 0) {
        break;
      }
      rest = std::min(rest - (all - budget), rest - rest / 32);
    }
  }
  fail_input({.thing = "memory budget",
              .wrong = fmt::format("the step needs at least {} at once", in_words(least)),
              .got = in_words(budget),
              .advice = fmt::format("{} are parameters, state of the optimizer and other inputs of "
                                    "the step; shard them over more ranks, or train with smaller "
                                    "micro-batches",
                                    in_words(needs.inputs))});
}

}  // namespace tessera::graph
