// Collectives of values that were communicated before are not made again.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :facts;
import :editor;
import :renumbering;
import :headroom;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// A collective that makes its results in new memory, which nothing writes afterwards.
struct Collective {
  PlaceIndex place;
  PlaceIndex complete;  // after which its results are there
  int in_group = 0;     // its number among the calls of its group
};

struct Merge {
  Collective first;
  Collective again;
};

class Finder {
 public:
  Finder(const Program& program, const Analysis& known) : facts_(program, known), room_(facts_) {}

  std::vector<Merge> find() {
    std::vector<Merge> merges;
    std::map<ValueIndex, Collective> known;    // by what they compute
    std::map<const CallGroup*, int> in_group;  // calls so far
    for (const PlaceIndex place : facts_.places.keys()) {
      const Instruction& i = facts_.at(place);
      if (i.kind != Kind::call || i.op->communicates == Communicates::none ||
          group_of(i) == nullptr) {
        continue;
      }
      const int number = in_group[group_of(i)]++;
      const PlaceIndex complete = std::max(place, facts_.shadow.partners[place]);
      const Collective again{place, complete, number};
      if (!makes(i, again)) {
        continue;
      }
      const auto [first, is_new] = known.try_emplace(facts_.values.calls[place], again);
      if (!is_new && first->second.complete < again.complete && keep(first->second, again)) {
        merges.push_back({first->second, again});
      } else if (!is_new) {
        first->second = again;
      }
    }
    return merges;
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return facts_.shadow.memory(number); }

  /// Whether the instruction makes all its results, and what it makes stays as it is.
  bool makes(const Instruction& i, const Collective& one) const {
    return !i.op->in_place && i.op->communicates != Communicates::waits && !i.out.empty() &&
           facts_.accesses[one.place].writes.size() == i.out.size() &&
           std::ranges::all_of(i.out, [&](TensorIndex number) {
             const auto stays = [&](const Values::Change& change) {
               return change.place == one.place || change.place == one.complete;
             };
             return number.exists() &&
                    std::ranges::all_of(facts_.values.changes[memory(number)], stays);
           });
  }

  /// Whether there is memory for the first results until the later ones are not needed any more.
  bool keep(const Collective& first, const Collective& again) {
    const std::vector<TensorIndex>& kept = facts_.at(first.place).out;
    if (!room_.has(kept, again.place)) {
      return false;
    }
    room_.keep(kept, facts_.at(again.place).out, again.place);
    return true;
  }

  ProgramFacts facts_;
  Headroom room_;
};

/// Proposal to merge calls, by their numbers in the group, which are the same on all ranks of it.
Proposal proposal_of(const Merge& merge, const CallGroup& group) {
  return {.group = group,
          .change = hash_combine(static_cast<std::uint64_t>(merge.first.in_group),
                                 static_cast<std::uint64_t>(merge.again.in_group))};
}

}  // namespace

/// This rank knows that the operands are the same twice. Another one may have other operands, for
/// example where the host decides by the number of the rank, so each merge is one that all ranks of
/// the group propose: then each of them has the same operands twice, and so all have the same
/// results.
void merge_collectives(Program& program, const Analysis& known, const Agree& agree) {
  const std::vector<Merge> merges = Finder(program, known).find();
  const ByPlace<const Instruction*> places = places_of(program);
  std::vector<Proposal> proposals;
  for (const Merge& merge : merges) {
    proposals.push_back(proposal_of(merge, *group_of(*places[merge.again.place])));
  }
  const std::vector<bool> agreed = agree(proposals);  // also where this rank proposes nothing
  Replacement replacement(program);
  for (std::size_t k = 0; k < merges.size(); ++k) {
    const auto& [first, again] = merges[k];
    if (!agreed[k]) {
      continue;
    }
    replacement.remove(again.place);
    replacement.remove(again.complete);
    for (std::size_t out = 0; out < places[again.place]->out.size(); ++out) {
      replacement.replace(places[again.place]->out[out], places[first.place]->out[out]);
    }
  }
  replacement.apply(program);
}

}  // namespace tessera::graph
