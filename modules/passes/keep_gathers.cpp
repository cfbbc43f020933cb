// Gathers of what was gathered before and is still known are not made again.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :keep_gathers;
import :builtin;
import :facts;
import :recompute;
import :renumbering;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// A gather into one memory that the program makes for it.
struct Gather {
  PlaceIndex place;
  PlaceIndex wait;
  PlaceIndex made = {};     // where the memory is made
  TensorIndex number = {};  // as which
  MemoryIndex memory;
};

/// A gather, and an earlier one of the same values.
struct RepeatedGather {
  Gather first;
  Gather again;
};

class Finder {
 public:
  Finder(const Program& program, const Analysis& known) : facts_(program, known) {}

  /// Those that backward needs soonest after forward come first.
  std::vector<RepeatedGather> find() const {
    std::vector<Gather> all;
    std::vector<RepeatedGather> repeated;
    for (const PlaceIndex place : facts_.places.keys()) {
      const std::optional<Gather> again = gather_at(place);
      if (!again) {
        continue;
      }
      const auto first = std::ranges::find_if(
          all.rbegin(), all.rend(), [&](const Gather& one) { return is_same(one, *again); });
      if (first != all.rend()) {
        repeated.push_back({*first, *again});
      }
      all.push_back(*again);
    }
    std::ranges::sort(repeated, {}, [](const RepeatedGather& pair) {
      return std::pair(pair.again.place - pair.first.place, pair.again.place);
    });
    return repeated;
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return facts_.shadow.memory(number); }

  std::optional<Gather> gather_at(PlaceIndex place) const {
    const Instruction& i = facts_.at(place);
    const PlaceIndex wait = facts_.shadow.partners[place];
    if (i.kind != Kind::call || !i.op->issues || !i.op->in_place || wait < place ||
        i.op->communicates != Communicates::all_gather) {
      return std::nullopt;
    }
    Gather gather{.place = place, .wait = wait, .memory = memory(i.in[0])};
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      if (i.writes(k) && memory(i.in[k]) != gather.memory) {
        return std::nullopt;
      }
    }
    const Memory& one = facts_.shadow.memories[gather.memory];
    const Instruction& made = facts_.at(one.first);
    if (one.is_input || one.is_output || made.kind != Kind::empty ||
        memory(made.out[0]) != gather.memory) {
      return std::nullopt;
    }
    gather.made = one.first;
    gather.number = made.out[0];
    return gather;
  }

  /// Whether the first one's memory holds, when the other one is issued, what the other one brings:
  /// in the same places, and to stay.
  bool is_same(const Gather& first, const Gather& again) const {
    const Instruction& a = facts_.at(first.place);
    const Instruction& b = facts_.at(again.place);
    const auto same_view = [&](TensorIndex x, TensorIndex y) {
      return view_in_words(facts_.shadow.at(x)) == view_in_words(facts_.shadow.at(y));
    };
    const ValueIndex contents = facts_.values.contents_before(again.place, first.memory);
    return first.memory != again.memory && a.op == b.op && a.in.size() == b.in.size() &&
           facts_.shadow.memories[first.memory].bytes ==
               facts_.shadow.memories[again.memory].bytes &&
           same_view(first.number, again.number) && std::ranges::equal(a.in, b.in, same_view) &&
           contents == facts_.values.contents_before(again.wait + 1, again.memory) &&
           contents.exists() && facts_.values.changes[again.memory].back().place <= again.wait;
  }

  ProgramFacts facts_;
};

/// The program without the later gathers.
Program without(const Program& program, std::span<const RepeatedGather> repeated) {
  Program changed = program;
  std::vector<RepeatedGather> in_order(repeated.begin(), repeated.end());
  std::ranges::sort(in_order, {}, [](const RepeatedGather& pair) { return pair.again.place; });
  Replacement replacement(program);
  for (const auto& [first, again] : in_order) {
    replacement.replace(again.number, first.number);
    for (const PlaceIndex place : {again.made, again.place, again.wait}) {
      replacement.remove(place);
    }
  }
  replacement.apply(changed);
  return changed;
}

void replace(Program& program, Program changed) {
  verify(changed);
  verify_same(program, changed);
  program = std::move(changed);
}

}  // namespace

void keep_all_gathers(Program& program, const Analysis& known) {
  program = without(program, Finder(program, known).find());
}

int keep_gathers(Program& program, int most) {
  std::vector<RepeatedGather> repeated = Finder(program, Analysis(program)).find();
  if (most >= 0 && repeated.size() > static_cast<std::size_t>(most)) {
    repeated.resize(static_cast<std::size_t>(most));
  }
  replace(program, without(program, repeated));
  return static_cast<int>(repeated.size());
}

void keep_gathers_within(Program& program, std::int64_t budget) {
  std::vector<RepeatedGather> repeated = Finder(program, Analysis(program)).find();
  for (; !repeated.empty(); repeated.pop_back()) {
    Program changed = without(program, repeated);
    if (planned_bytes(changed) <= budget) {
      replace(program, std::move(changed));
      return;
    }
  }
}

}  // namespace tessera::graph
