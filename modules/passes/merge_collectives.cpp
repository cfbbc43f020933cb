// Collectives of values that were communicated before are not made again.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :pass;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// A collective that makes its results in new memory, which nothing writes afterwards.
struct Collective {
  int place = 0;
  int complete = 0;  // the place after which its results are there
  int in_group = 0;  // its number among the calls of its group
};

struct Merge {
  Collective first;
  Collective again;
};

class Finder {
 public:
  Finder(const Program& program, const Analysis& known)
      : places_(places_of(program)),
        shadow_(known.state().shadow),
        accesses_(known.state().accesses),
        values_(values_of(program, known, names_)),
        live_(index(shadow_.places) + 1, 0) {
    for (const Memory& one : shadow_.memories) {
      last_.add(one.last);
      if (!one.is_input && !one.elsewhere) {
        add_live(one.first, one.last, one.bytes);
      }
    }
    peak_ = *std::ranges::max_element(live_);
  }

  std::vector<Merge> find() {
    std::vector<Merge> merges;
    std::map<int, Collective> known;           // by what they compute
    std::map<const CallGroup*, int> in_group;  // calls so far
    for (int place = 0; place < shadow_.places; ++place) {
      const Instruction& i = *places_[index(place)];
      if (i.kind != Kind::call || i.op->communicates == Communicates::none ||
          group_of(i) == nullptr) {
        continue;
      }
      const int number = in_group[group_of(i)]++;
      const int partner = shadow_.partners[index(place)];
      const Collective again{place, std::max(place, partner), number};
      if (!makes(i, again)) {
        continue;
      }
      const auto [first, is_new] = known.try_emplace(values_.calls[index(place)], again);
      if (!is_new && first->second.complete < again.complete && keep(first->second, again)) {
        merges.push_back({first->second, again});
      } else if (!is_new) {
        first->second = again;
      }
    }
    return merges;
  }

 private:
  MemoryIndex memory(int number) const { return shadow_.memory(number); }

  /// Whether the instruction makes all its results, and what it makes stays as it is.
  bool makes(const Instruction& i, const Collective& one) const {
    return !i.op->in_place && i.op->communicates != Communicates::waits && !i.out.empty() &&
           accesses_[index(one.place)].writes.size() == i.out.size() &&
           std::ranges::all_of(i.out, [&](int number) {
             return number >= 0 &&
                    std::ranges::all_of(values_.changes[memory(number)], [&](const auto& change) {
                      return change.place == one.place || change.place == one.complete;
                    });
           });
  }

  void add_live(int first, int last, std::int64_t bytes) {
    for (int place = first; place <= last; ++place) {
      live_[index(place)] += bytes;
    }
  }

  /// Whether there is memory for the first results until the later ones are not needed any more,
  /// which take nothing then.
  bool keep(const Collective& first, const Collective& again) {
    const std::vector<int>& kept = places_[index(first.place)]->out;
    const std::vector<int>& spared = places_[index(again.place)]->out;
    std::vector<std::int64_t> more(index(again.place), 0);
    for (const int number : kept) {
      const Memory& one = shadow_.memories[memory(number)];
      for (int place = last_[memory(number)] + 1; place < again.place; ++place) {
        more[index(place)] += one.bytes;
      }
    }
    for (std::size_t place = 0; place < more.size(); ++place) {
      if (more[place] > 0 && live_[place] + more[place] > peak_) {
        return false;
      }
    }
    for (std::size_t place = 0; place < more.size(); ++place) {
      live_[place] += more[place];
    }
    for (std::size_t k = 0; k < kept.size(); ++k) {
      int& end = last_[memory(kept[k])];
      const Memory& one = shadow_.memories[memory(spared[k])];
      add_live(one.first, one.last, -one.bytes);
      add_live(std::max(end + 1, again.place), one.last, one.bytes);
      end = std::max(end, one.last);
    }
    return true;
  }

  std::vector<const Instruction*> places_;
  const Shadow& shadow_;
  const std::vector<Access>& accesses_;
  ValueNames names_;
  Values values_;
  ByMemory<int> last_;              // the last place that needs it
  std::vector<std::int64_t> live_;  // by place
  std::int64_t peak_ = 0;
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
  const std::vector<const Instruction*> places = places_of(program);
  std::vector<Proposal> proposals;
  for (const Merge& merge : merges) {
    proposals.push_back(proposal_of(merge, *group_of(*places[index(merge.again.place)])));
  }
  const std::vector<bool> agreed = agree(proposals);  // also where this rank proposes nothing
  std::vector<int> number_of(program.tensors.size());
  std::iota(number_of.begin(), number_of.end(), 0);
  std::vector<bool> removed(places.size(), false);
  for (std::size_t k = 0; k < merges.size(); ++k) {
    const auto& [first, again] = merges[k];
    if (!agreed[k]) {
      continue;
    }
    removed[index(again.place)] = removed[index(again.complete)] = true;
    for (std::size_t out = 0; out < places[index(again.place)]->out.size(); ++out) {
      number_of[index(places[index(again.place)]->out[out])] = places[index(first.place)]->out[out];
    }
  }
  int place = 0;
  for (Section& section : program.sections) {
    std::erase_if(section.instructions, [&](Instruction& i) {
      renumber(i, number_of);
      return removed[index(place++)];
    });
  }
  for (auto& [name, number] : program.outputs) {
    number = number_of[index(number)];
  }
}

}  // namespace tessera::graph
