// Values that are dropped, and computed again before they are next used.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.record;
import :accesses;
import :analysis;
import :block;
import :passes;
import :recompute;
import :recompute_plan;
import :shadow;
import :verify;

namespace tessera::graph {
namespace {

class Recomputer {
 public:
  Recomputer(Program& program, const RecomputePlan& plan)
      : program_(program),
        plan_(plan),
        shadow_(shadow_of(program)),
        base_(shadow_.memories.size(), -1),
        times_(shadow_.memories.size(), 0),
        number_of_(program.tensors.size()),
        time_of_(program.tensors.size(), 0) {
    for (const Instruction* i : places_of(program)) {
      instructions_.push_back(*i);
    }
    std::iota(number_of_.begin(), number_of_.end(), 0);
    for (const auto& [name, number] : program.inputs) {
      base_[memory(number)] = number;
    }
  }

  void recompute() {
    int place = 0;
    auto next = plan_.recomputations.begin();
    for (Section& section : program_.sections) {
      for (Instruction& i : std::exchange(section.instructions, {})) {
        for (; next != plan_.recomputations.end() && next->place == place; ++next) {
          make(*next, section.instructions);
        }
        made_.clear();
        add(std::move(i), section.instructions);
        ++place;
      }
    }
    for (auto& [name, number] : program_.outputs) {
      number = number_of_[index(number)];
    }
  }

 private:
  /// The results of a recomputation, by the memory that the first call made.
  using Results = std::map<int, int>;

  std::size_t memory(int number) const {
    return static_cast<std::size_t>(shadow_.memory_of[index(number)]);
  }

  int new_number(int like) {
    program_.tensors.push_back(program_.tensors[index(like)]);
    return static_cast<int>(program_.tensors.size()) - 1;
  }

  /// A tensor as `number` is one, in the memory that `base` begins.
  int view(int number, int base, int scope, std::vector<Instruction>& into) {
    const Tensor& x = shadow_.tensors[index(number)];
    const int made = new_number(number);
    into.push_back({.kind = Instruction::Kind::alias,
                    .in = {base},
                    .out = {made},
                    .strides = x.strides(),
                    .offset = x.offset(),
                    .scope = scope});
    return made;
  }

  void add(Instruction i, std::vector<Instruction>& into) {
    for (const int number : i.in) {
      if (number >= 0 && time_of_[index(number)] != times_[memory(number)]) {
        time_of_[index(number)] = times_[memory(number)];
        number_of_[index(number)] = view(number, base_[memory(number)], i.scope, into);
      }
    }
    renumber(i, number_of_);
    for (const int number : i.out) {
      if (number >= 0) {
        int& base = base_[memory(number)];
        base = base < 0 ? number : base;
        time_of_[index(number)] = times_[memory(number)];
      }
    }
    into.push_back(std::move(i));
  }

  /// Makes a call again, after those at the same place that make its operands.
  void make(const Recomputation& again, std::vector<Instruction>& into) {
    if (made_.contains(again.maker)) {
      return;
    }
    for (const Recomputation& other : plan_.recomputations) {
      if (other.place == again.place && other.maker != again.maker && makes_for(other, again)) {
        make(other, into);
      }
    }
    const Instruction& call = instructions_[index(again.maker)];
    Instruction i = call;
    i.scope = scope_of(call);
    Results& results = made_[again.maker];
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      i.in[k] =
          again.sources[k] < 0 ? -1 : view(call.in[k], found(again.sources[k]), i.scope, into);
    }
    for (std::size_t k = 0; k < i.out.size(); ++k) {
      i.out[k] = new_number(call.out[k]);
      results[static_cast<int>(memory(call.out[k]))] = i.out[k];
    }
    into.push_back(std::move(i));
    for (const int revived : again.revived) {
      base_[index(revived)] = results.at(revived);
      ++times_[index(revived)];
    }
  }

  /// Whether `first` makes an operand of `second` at the same place.
  bool makes_for(const Recomputation& first, const Recomputation& second) const {
    const Instruction& call = instructions_[index(first.maker)];
    return std::ranges::any_of(call.out, [&](int number) {
      return std::ranges::find(second.sources, static_cast<int>(memory(number))) !=
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
    return base_[index(source)];
  }

  int scope_of(const Instruction& call) {
    return program_.scope({"recomputation", program_.scopes[index(call.scope)].module});
  }

  Program& program_;
  const RecomputePlan& plan_;
  Shadow shadow_;
  std::vector<Instruction> instructions_;  // of the program as it was
  std::vector<int> base_;                  // by memory: the tensor that it begins with, at present
  std::vector<int> times_;                 // by memory: how often it was made again so far
  std::vector<int> number_of_;             // by number, at present
  std::vector<int> time_of_;               // by number: of the memory when it was last made
  std::map<int, Results> made_;            // before the instruction, by the place of the call
};

/// What a planned step needs.
struct Needs {
  std::int64_t inputs = 0;
  std::int64_t peak = 0;  // of what is alive, inputs excepted
  std::int64_t all = 0;
};

Needs needs_of(const Program& program) {
  const Shadow shadow = shadow_of(program);
  const Block block = block_of(program, shadow);
  Needs needs{.peak = peak_bytes(shadow)};
  for (const Memory& memory : shadow.memories) {
    needs.inputs += memory.is_input ? memory.bytes : 0;
  }
  needs.all = needs.inputs + block.bytes + block.outside;
  return needs;
}

/// The program with a peak of at most `bytes` besides inputs, or as near as it gets.
Program lowered(const Program& program, const RecomputeLimits& limits, int& calls) {
  Program changed = program;
  const RecomputePlan plan = plan_recompute(program, limits);
  Recomputer(changed, plan).recompute();
  calls = static_cast<int>(plan.recomputations.size());
  return changed;
}

std::string in_words(std::int64_t bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

}  // namespace

void recompute_cheap(Program& program, const Analysis& /*known*/) {
  const RecomputePlan plan = plan_recompute(program, {});
  Recomputer(program, plan).recompute();
}

std::int64_t planned_bytes(const Program& program) { return needs_of(program).all; }

MemoryFit fit_memory(Program& program, std::int64_t budget) {
  const Needs needs = needs_of(program);
  if (needs.all <= budget) {
    return {.bytes = needs.all};
  }
  std::int64_t least = needs.all;
  for (const bool products : {false, true}) {
    // In place, less is needed than what is alive at the peak; for workspaces and gaps in the
    // block, more: then a lower peak is tried.
    std::int64_t rest = needs.peak - (needs.all - budget);
    while (true) {
      int calls = 0;
      Program changed =
          lowered(program, {.bytes = std::max<std::int64_t>(0, rest), .products = products}, calls);
      const std::int64_t all = needs_of(changed).all;
      least = std::min(least, all);
      if (all <= budget) {
        verify(changed);
        verify_same(program, changed);
        program = std::move(changed);
        return {.bytes = all, .calls = calls};
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
