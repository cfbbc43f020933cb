// Values that are dropped, and computed again or fetched from other memory before they are next
// used.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import :offload_plan;
import :builtin;
import :recompute;
import :recompute_plan;
import :renumbering;

namespace tessera::graph {
namespace {

class Recomputer {
 public:
  using Plan = std::span<const Recomputation>;

  Recomputer(Program& program, const Shadow& shadow, const MemoryChoices& choices)
      : program_(program),
        plan_(choices.again),
        offloads_(choices.offloads),
        stored_(choices.offloads.size()),
        numbers_(program, shadow) {
    for (const Instruction* i : places_of(program)) {
      instructions_.add(*i);
    }
  }

  void recompute() {
    PlaceIndex place(0);
    for (Section& section : program_.sections) {
      for (Instruction& i : std::exchange(section.instructions, {})) {
        const Plan here = next_at(place);
        for (const Recomputation& again : here) {
          make(again, here, section.instructions);
        }
        made_.clear();
        const ScopeIndex scope = i.scope;
        numbers_.add(std::move(i), section.instructions);
        for (const OffloadIndex offload : offloads_.keys()) {
          if (offloads_[offload].after == place) {
            store(offload, scope, section.instructions);
          }
        }
        ++place;
      }
    }
    for (auto& [name, number] : program_.outputs) {
      number = numbers_.present(number);
    }
  }

 private:
  /// The results of a recomputation, by the memory that the first call made.
  using Results = std::map<MemoryIndex, TensorIndex>;

  /// Values to make again before this place; places are asked for in their order.
  Plan next_at(PlaceIndex place) {
    const auto end = std::ranges::find_if(
        plan_, [&](const Recomputation& again) { return again.place != place; });
    const auto count = static_cast<std::size_t>(end - plan_.begin());
    const Plan here = plan_.first(count);
    plan_ = plan_.subspan(count);
    return here;
  }

  /// Copies all of a memory into a new one.
  TensorIndex copy(TensorIndex from, bool elsewhere, ScopeIndex scope,
                   std::vector<Instruction>& into) {
    const TensorIndex made = numbers_.new_number(from);
    program_.tensors[made].elsewhere = elsewhere;
    into.push_back({.kind = Instruction::Kind::empty, .out = {made}, .scope = scope});
    into.push_back({.op = &find_op("copy_"), .in = {made, from}, .scope = scope});
    return made;
  }

  void store(OffloadIndex offload, ScopeIndex scope, std::vector<Instruction>& into) {
    scope = program_.scope({Phase::offload, program_.scopes[scope].module});
    stored_[offload] = copy(numbers_.base(offloads_[offload].memory), true, scope, into);
  }

  void fetch(const Recomputation& again, std::vector<Instruction>& into) {
    const Offload& offload = offloads_[again.offload];
    const ScopeIndex scope = program_.scope({Phase::fetch, module_of(instructions_[again.place])});
    const TensorIndex made = copy(stored_[again.offload], false, scope, into);
    made_[key_of(again)][offload.memory] = made;
    for (const MemoryIndex revived : again.revived) {
      numbers_.renew(revived, made);
    }
  }

  /// Key of what a recomputation makes at its place.
  static std::pair<PlaceIndex, OffloadIndex> key_of(const Recomputation& again) {
    return {again.maker, again.offload};
  }

  /// Makes a call again, after those of `here` that make its operands.
  void make(const Recomputation& again, Plan here, std::vector<Instruction>& into) {
    if (made_.contains(key_of(again))) {
      return;
    }
    if (again.offload.exists()) {
      fetch(again, into);
      return;
    }
    for (const Recomputation& other : here) {
      if (key_of(other) != key_of(again) && makes_for(other, again)) {
        make(other, here, into);
      }
    }
    const Instruction& call = instructions_[again.maker];
    Instruction i = call;
    i.scope = scope_of(call);
    Results& results = made_[key_of(again)];
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const MemoryIndex source = again.sources[k];
      i.in[k] =
          source.exists() ? numbers_.view(call.in[k], found(source), i.scope, into) : TensorIndex();
    }
    for (std::size_t k = 0; k < i.out.size(); ++k) {
      i.out[k] = numbers_.new_number(call.out[k]);
      results[numbers_.memory(call.out[k])] = i.out[k];
    }
    into.push_back(std::move(i));
    for (const MemoryIndex revived : again.revived) {
      numbers_.renew(revived, results.at(revived));
    }
  }

  /// Whether `first` makes an operand of `second` at the same place.
  bool makes_for(const Recomputation& first, const Recomputation& second) const {
    if (first.offload.exists()) {
      return std::ranges::find(second.sources, offloads_[first.offload].memory) !=
             second.sources.end();
    }
    const Instruction& call = instructions_[first.maker];
    return std::ranges::any_of(call.out, [&](TensorIndex number) {
      return std::ranges::find(second.sources, numbers_.memory(number)) != second.sources.end();
    });
  }

  /// The first tensor of what holds the value at present.
  TensorIndex found(MemoryIndex source) const {
    for (const auto& [key, results] : made_) {
      if (const auto result = results.find(source); result != results.end()) {
        return result->second;
      }
    }
    return numbers_.base(source);
  }

  ScopeIndex scope_of(const Instruction& call) {
    return program_.scope({Phase::recomputation, module_of(call)});
  }
  std::string module_of(const Instruction& call) const {
    return program_.scopes[call.scope].module;
  }

  Program& program_;
  Plan plan_;  // of the places that follow
  const ByOffload<Offload>& offloads_;
  ByOffload<TensorIndex> stored_;  // the tensor that is elsewhere
  Renumbering numbers_;
  ByPlace<Instruction> instructions_;  // of the program as it was
  /// Before the instruction, by key_of.
  std::map<std::pair<PlaceIndex, OffloadIndex>, Results> made_;
};

/// Memory that a planned step needs.
struct MemoryNeeds {
  std::int64_t inputs = 0;
  std::int64_t peak = 0;  // of what is alive, inputs excepted
  std::int64_t all = 0;
};

MemoryNeeds needs_of(const Program& program, const Shadow& shadow,
                     std::span<const Chain> chains = {}) {
  const Block block = block_of(program, shadow, step_context().planned_device, chains);
  MemoryNeeds needs{.peak = peak_bytes(shadow)};
  for (const Memory& memory : shadow.memories) {
    needs.inputs += memory.is_input ? memory.bytes : 0;
  }
  needs.all = needs.inputs + block.bytes + block.outside;
  return needs;
}

std::string in_words(std::int64_t bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

}  // namespace

void recompute_cheap(Program& program, const Analysis& known) {
  const MemoryChoices choices = plan_recompute(program, known, {});
  Recomputer(program, known.state().shadow, choices).recompute();
}

std::int64_t planned_bytes(const Program& program, bool compiled) {
  const Shadow shadow = shadow_of(program);
  if (!compiled) {
    return needs_of(program, shadow).all;
  }
  const std::vector<Chain> chains = chains_of(program, shadow);
  return needs_of(program, shadow_of(program, chains), chains).all;
}

std::int64_t bytes_elsewhere(const Program& program) {
  const Shadow shadow = shadow_of(program);
  std::map<std::int64_t, std::vector<MemoryPiece>> pieces;
  for (const Memory& memory : shadow.memories) {
    if (memory.elsewhere) {
      pieces[memory.bytes].push_back({memory.bytes, memory.first, memory.last});
    }
  }
  std::int64_t bytes = 0;
  for (const auto& [size, all] : pieces) {
    bytes += plan_memory(all, 1).least;
  }
  return bytes;
}

namespace {

/// A program within its budget.
struct FittedProgram {
  Program program;
  MemoryFit fit;
  double seconds = 0;
};

class Fitter {
 public:
  Fitter(const Program& program, std::int64_t budget)
      : program_(program),
        budget_(budget),
        known_(program),
        needs_(needs_of(program, known_.state().shadow)) {}

  const MemoryNeeds& needs() const { return needs_; }

  std::optional<FittedProgram> fitted(bool products, const FitOptions& options) const {
    // In place, less is needed than what is alive at the peak; for workspaces and gaps in the
    // block, more: then a lower peak is tried.
    std::int64_t rest = needs_.peak - (needs_.all - budget_);
    while (true) {
      FittedProgram changed = changed_to(std::max<std::int64_t>(0, rest), products, options);
      if (changed.fit.bytes <= budget_) {
        return changed;
      }
      if (rest <= 0) {
        return std::nullopt;
      }
      rest = std::min(rest - (changed.fit.bytes - budget_), rest - rest / 32);
    }
  }

  /// The plan, of many, that needs least. They do not depend on the budget, nor on measured
  /// rates: what a refusal names is met in another run.
  FittedProgram least(bool offered) const {
    FitOptions options;
    if (offered) {
      options.offloading = OffloadRates();
    }
    constexpr int plans = 48;
    FittedProgram least = changed_to(0, true, options);
    for (int k = 1; k < plans; ++k) {
      FittedProgram other = changed_to(needs_.peak * k / plans, true, options);
      if (other.fit.bytes < least.fit.bytes) {
        least = std::move(other);
      }
    }
    return least;
  }

 private:
  /// As few bytes as that are alive at once, if that can be.
  FittedProgram changed_to(std::int64_t bytes, bool products, const FitOptions& options) const {
    const MemoryChoices choices =
        plan_recompute(program_, known_, {.bytes = bytes, .products = products}, options);
    Program changed = program_;
    Recomputer(changed, known_.state().shadow, choices).recompute();
    const auto fetched = static_cast<int>(std::ranges::count_if(
        choices.again, [](const Recomputation& again) { return again.offload.exists(); }));
    const MemoryFit fit{.bytes = planned_bytes(changed),
                        .calls = static_cast<int>(choices.again.size()) - fetched,
                        .stored = static_cast<int>(choices.offloads.size()),
                        .fetched = fetched};
    return {.program = std::move(changed), .fit = fit, .seconds = choices.seconds};
  }

  const Program& program_;
  std::int64_t budget_;
  Analysis known_;
  MemoryNeeds needs_;
};

}  // namespace

MemoryFit fit_memory(Program& program, std::int64_t budget, const FitOptions& options) {
  const std::int64_t room = budget - options.kept;
  Fitter fitter(program, room);
  const MemoryNeeds& needs = fitter.needs();
  if (needs.all <= room) {
    return {.bytes = needs.all};
  }
  const FitOptions without{.computing = options.computing};
  std::optional<FittedProgram> best = fitter.fitted(false, without);
  if (!best) {
    best = fitter.fitted(true, without);
  }
  for (const bool products : {false, true}) {
    std::optional<FittedProgram> other =
        options.offloading ? fitter.fitted(products, options) : std::nullopt;
    if (other && (!best || other->seconds < best->seconds)) {
      best = std::move(other);
    }
  }
  std::int64_t least = needs.all;
  for (const bool offered : {false, true}) {
    if (!best && (!offered || options.offloading)) {
      FittedProgram other = fitter.least(offered);
      least = std::min(least, other.fit.bytes);
      if (other.fit.bytes <= room) {
        best = std::move(other);
      }
    }
  }
  if (!best) {
    fail_input(
        {.thing = "memory budget",
         .wrong = fmt::format("the step needs at least {} at once", in_words(least + options.kept)),
         .got = in_words(budget),
         .advice = fmt::format("{} are parameters, state of the optimizer and other inputs of "
                               "the step; shard them over more ranks, or train with smaller "
                               "micro-batches",
                               in_words(needs.inputs))});
  }
  verify(best->program);
  verify_same(program, best->program);
  program = std::move(best->program);
  return best->fit;
}

}  // namespace tessera::graph
