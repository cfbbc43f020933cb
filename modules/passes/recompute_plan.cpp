module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :facts;
import :offload_plan;
import :recompute;
import :recompute_plan;

namespace tessera::graph {
namespace {

/// Values that are made for a value at most.
constexpr int longest_chain = 16;

/// Way to bring a value back at a place, and what it costs.
struct Return {
  std::vector<Recomputation> recomputations = {};
  bool stores = false;  // the value must be copied into other memory first
  double seconds = 0;
  std::int64_t bytes = 0;  // of results that are needed only there
};

/// Seconds of making a call again.
double seconds_of(const Instruction& i, const Shadow& shadow, const ComputeRates& rates) {
  const std::vector<Tensor> in = shadow.at(i.in);
  const std::vector<Tensor> out = shadow.at(i.out);
  double moved = 0;
  for (const auto* tensors : {&in, &out}) {
    for (const Tensor& x : *tensors) {
      moved += x ? static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype())) : 0;
    }
  }
  const double flops = i.op->flops == nullptr ? 0 : i.op->flops({*i.op, in, i.attributes}, out);
  return flops / rates.flops + moved / rates.bytes;
}

class Planner {
 public:
  Planner(const Program& program, const Analysis& known, const RecomputeLimits& limits,
          const FitOptions& options)
      : limits_(limits),
        rates_(options.computing),
        offered_(options.offloading.has_value()),
        facts_(program, known),
        shadow_(facts_.shadow),
        values_(facts_.values),
        maker_(shadow_.memories.size()),
        uses_(uses_of(program, known)),
        gaps_(shadow_.memories.size()),
        bytes_(needed_bytes(shadow_)),
        offloads_(program, known, values_, options.offloading) {
    find_makers();
    find_holders();
  }

  MemoryChoices plan() {
    while (true) {
      const auto most = std::ranges::max_element(bytes_);
      if (*most <= limits_.bytes || !lower(bytes_.key_of(most))) {
        std::ranges::sort(plan_, [](const Recomputation& a, const Recomputation& b) {
          return std::tuple(a.place, a.maker, a.offload) < std::tuple(b.place, b.maker, b.offload);
        });
        return {std::move(plan_), std::move(offloads_.all()), seconds_};
      }
    }
  }

 private:
  struct Gap {
    PlaceIndex after;   // the last use before it
    PlaceIndex before;  // the next use
  };

  void add_bytes(PlaceIndex first, PlaceIndex last, std::int64_t bytes) {
    for (const PlaceIndex place : Indices(first, last + 1)) {
      bytes_[place] += bytes;
    }
  }

  /// Whether the call can be made again, with the same results.
  bool is_pure(PlaceIndex place) const {
    const Instruction& i = facts_.at(place);
    const Access& access = facts_.accesses[place];
    return is_pure_call(i, access) && i.op->view == nullptr &&
           access.writes.size() == i.out.size() && (limits_.products || i.op->flops == nullptr);
  }

  void find_holders() {
    for (const MemoryIndex memory : shadow_.memories.keys()) {
      if (shadow_.memories[memory].elsewhere) {
        continue;
      }
      for (const Values::Change& change : values_.changes[memory]) {
        if (change.contents.exists()) {
          holders_[change.contents].push_back(memory);
        }
      }
    }
  }

  void find_makers() {
    for (const PlaceIndex place : facts_.places.keys()) {
      if (!is_pure(place)) {
        continue;
      }
      for (const MemoryIndex memory : facts_.accesses[place].writes) {
        const Memory& made = shadow_.memories[memory];
        if (!made.is_output && !values_.is_written[memory]) {
          maker_[memory] = place;
        }
      }
    }
  }

  /// Whether an instruction at the place finds the memory's first contents in it.
  bool is_there(MemoryIndex memory, PlaceIndex place) const {
    const Memory& one = shadow_.memories[memory];
    return (one.is_input || (one.first < place && one.last >= place)) &&
           std::ranges::none_of(gaps_[memory], [&](const Gap& gap) {
             return gap.after < place && place < gap.before;
           });
  }

  /// A memory that holds the description before the place, if there is one.
  MemoryIndex holder(ValueIndex contents, MemoryIndex liked, PlaceIndex place) const {
    const auto holds = [&](MemoryIndex memory) {
      return contents.exists() && is_there(memory, place) &&
             values_.contents_before(place, memory) == contents;
    };
    if (holds(liked)) {
      return liked;
    }
    const auto others = holders_.find(contents);
    if (others == holders_.end()) {
      return {};
    }
    const auto found = std::ranges::find_if(others->second, holds);
    return found == others->second.end() ? MemoryIndex() : *found;
  }

  /// Adds what fetches the memory's value before the place. False: no copy of it was stored.
  bool add_fetch(Return& chain, MemoryIndex memory, PlaceIndex place) const {
    const OffloadIndex stored = offloads_.find(memory, place);
    if (!stored.exists()) {
      return false;
    }
    add_fetch_of(chain, memory, place, stored);
    return true;
  }

  void add_fetch_of(Return& chain, MemoryIndex memory, PlaceIndex place,
                    OffloadIndex stored) const {
    const auto same = [&](const Recomputation& other) {
      return other.place == place && other.offload == stored;
    };
    if (!std::ranges::any_of(chain.recomputations, same) && !std::ranges::any_of(plan_, same)) {
      chain.recomputations.push_back({.place = place, .offload = stored});
      chain.bytes += shadow_.memories[memory].bytes;
      chain.seconds += offloads_.fetch_seconds(memory);
    }
  }

  /// Adds what makes the memory's value again before the place. False: it cannot be made.
  bool add_to(Return& chain, MemoryIndex memory,
              PlaceIndex place) const {  // NOLINT(misc-no-recursion)
    const PlaceIndex maker = maker_[memory];
    if (!maker.exists() || maker >= place || chain.recomputations.size() >= longest_chain) {
      return false;
    }
    const auto same = [&](const Recomputation& other) {
      return other.place == place && other.maker == maker;
    };
    if (std::ranges::any_of(chain.recomputations, same) || std::ranges::any_of(plan_, same)) {
      return true;
    }
    const Instruction& i = facts_.at(maker);
    Recomputation again{.place = place, .maker = maker};
    for (const TensorIndex number : i.in) {
      const MemoryIndex source = shadow_.memory(number);
      const MemoryIndex found = source.exists()
                                    ? holder(values_.contents_before(maker, source), source, place)
                                    : MemoryIndex();
      if (source.exists() && !found.exists() && !add_source(chain, maker, source, place)) {
        return false;
      }
      again.sources.push_back(found.exists() ? found : source);
    }
    for (const TensorIndex number : i.out) {
      chain.bytes += shadow_.memories[shadow_.memory(number)].bytes;
    }
    chain.seconds += seconds_of(i, shadow_, rates_);
    chain.recomputations.push_back(std::move(again));
    return true;
  }

  /// An operand of a repeated call: it was stored, or is computed again too.
  bool add_source(Return& chain, PlaceIndex maker, MemoryIndex source,
                  PlaceIndex place) const {  // NOLINT(misc-no-recursion)
    const bool is_last =
        values_.contents_before(maker, source) == values_.contents_before(place, source);
    return (is_last && add_fetch(chain, source, place)) || add_to(chain, source, place);
  }

  /// The uses of a memory before and after the place, which is none.
  std::optional<Gap> gap_at(MemoryIndex memory, PlaceIndex place) const {
    const std::vector<PlaceIndex>& uses = uses_[memory];
    const auto next = std::ranges::lower_bound(uses, place);
    if (next == uses.begin() || next == uses.end() || *next == place || !is_there(memory, place)) {
      return std::nullopt;
    }
    return Gap{*std::prev(next), *next};
  }

  struct Candidate {
    MemoryIndex memory;
    Gap gap;
    double freed_per_second = 0;
  };

  /// Way to let a memory be dropped at the place by computing its value again, if less is needed at
  /// once then.
  std::optional<Return> made_again(MemoryIndex memory, const Gap& gap, PlaceIndex place) const {
    Return chain;
    const std::int64_t bytes = shadow_.memories[memory].bytes;
    if (!add_to(chain, memory, gap.before) ||
        bytes_[gap.before] + chain.bytes - bytes >= bytes_[place]) {
      return std::nullopt;
    }
    return chain;
  }

  /// Way by a copy in other memory.
  std::optional<Return> fetched(MemoryIndex memory, const Gap& gap) const {
    // Memory that nothing was written into yet holds no value.
    const bool is_empty = facts_.at(gap.after).kind == Instruction::Kind::empty;
    if (!offered_ || is_empty || !offloads_.is_possible(memory, gap.after, gap.before)) {
      return std::nullopt;
    }
    Return chain;
    if (!add_fetch(chain, memory, gap.before)) {
      chain.stores = true;
      chain.seconds = offloads_.store_seconds(memory) + offloads_.fetch_seconds(memory);
    }
    return chain;
  }

  /// The one of both that costs less.
  std::optional<Return> chain_of(MemoryIndex memory, const Gap& gap, PlaceIndex place) const {
    std::optional<Return> made =
        maker_[memory].exists() ? made_again(memory, gap, place) : std::nullopt;
    std::optional<Return> copy = fetched(memory, gap);
    return made && (!copy || made->seconds <= copy->seconds) ? made : copy;
  }

  std::vector<Candidate> candidates_at(PlaceIndex place) const {
    std::vector<Candidate> all;
    for (const MemoryIndex memory : maker_.keys()) {
      const std::int64_t bytes = shadow_.memories[memory].bytes;
      const std::optional<Gap> gap = (!maker_[memory].exists() && !offered_) || bytes == 0
                                         ? std::nullopt
                                         : gap_at(memory, place);
      const std::optional<Return> chain = gap ? chain_of(memory, *gap, place) : std::nullopt;
      if (chain) {
        all.push_back({memory, *gap, static_cast<double>(bytes) / (chain->seconds + 1e-9)});
      }
    }
    std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
      return a.freed_per_second != b.freed_per_second ? a.freed_per_second > b.freed_per_second
                                                      : a.memory < b.memory;
    });
    return all;
  }

  std::int64_t peak() const { return std::ranges::max(bytes_); }

  /// Drops values, those first for which a second of computing frees most, until the place needs
  /// less than another one. False: none helps.
  bool lower(PlaceIndex place) {
    bool lowered = false;
    for (const Candidate& candidate : candidates_at(place)) {
      const std::int64_t most = peak();
      if (most <= limits_.bytes || bytes_[place] < most) {
        break;
      }
      const std::optional<Gap> gap = gap_at(candidate.memory, place);
      std::optional<Return> chain = gap ? chain_of(candidate.memory, *gap, place) : std::nullopt;
      if (chain) {
        drop(candidate.memory, *gap, std::move(*chain));
        lowered = true;
      }
    }
    return lowered;
  }

  void drop(MemoryIndex memory, const Gap& gap, Return chain) {
    const std::int64_t bytes = shadow_.memories[memory].bytes;
    if (chain.stores) {
      add_fetch_of(chain, memory, gap.before, offloads_.add(memory, gap.after));
      chain.seconds = offloads_.store_seconds(memory) + offloads_.fetch_seconds(memory);
    }
    seconds_ += chain.seconds;
    add_bytes(gap.after + 1, gap.before - 1, -bytes);
    if (!chain.recomputations.empty()) {
      bytes_[gap.before] += chain.bytes - bytes;
    }
    gaps_[memory].push_back(gap);
    for (Recomputation& again : chain.recomputations) {
      for (const MemoryIndex source : again.sources) {
        if (source.exists() && is_there(source, gap.before)) {
          use_at(source, gap.before);
        }
      }
      plan_.push_back(std::move(again));
    }
    const auto made = std::ranges::find_if(plan_, [&](const Recomputation& other) {
      return other.place == gap.before && returns(other, memory);
    });
    made->revived.push_back(memory);
  }

  /// Whether the memory's value is in the results.
  bool returns(const Recomputation& again, MemoryIndex memory) const {
    return again.offload.exists() ? offloads_.memory(again.offload) == memory
                                  : again.maker == maker_[memory];
  }

  void use_at(MemoryIndex memory, PlaceIndex place) {
    std::vector<PlaceIndex>& uses = uses_[memory];
    const auto at = std::ranges::lower_bound(uses, place);
    if (at == uses.end() || *at != place) {
      uses.insert(at, place);
    }
  }

  RecomputeLimits limits_;
  ComputeRates rates_;
  bool offered_ = false;  // other memory
  ProgramFacts facts_;
  const Shadow& shadow_;
  const Values& values_;
  std::map<ValueIndex, std::vector<MemoryIndex>> holders_;  // by what they hold at some time
  ByMemory<PlaceIndex> maker_;                              // of the call that can be made again
  ByMemory<std::vector<PlaceIndex>> uses_;
  ByMemory<std::vector<Gap>> gaps_;  // while it is dropped
  ByPlace<std::int64_t> bytes_;      // that are needed at once
  std::vector<Recomputation> plan_;
  Offloads offloads_;
  double seconds_ = 0;
};

}  // namespace

MemoryChoices plan_recompute(const Program& program, const Analysis& known,
                             const RecomputeLimits& limits, const FitOptions& options) {
  return Planner(program, known, limits, options).plan();
}

}  // namespace tessera::graph
