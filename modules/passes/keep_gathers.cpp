// Gathers of what was gathered before and is still known are not made again.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
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
import :recompute;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// A gather into one memory that the program makes for it.
struct Gather {
  int place = 0;
  int wait = 0;
  int made = 0;    // the place where the memory is made
  int number = 0;  // as which
  MemoryIndex memory;
};

/// A gather, and an earlier one of the same values.
struct Repeated {
  Gather first;
  Gather again;
};

class Finder {
 public:
  Finder(const Program& program, const Analysis& known)
      : places_(places_of(program)),
        shadow_(known.state().shadow),
        values_(values_of(program, known, names_)) {}

  /// Those that backward needs soonest after forward come first.
  std::vector<Repeated> find() const {
    std::vector<Gather> all;
    std::vector<Repeated> repeated;
    for (int place = 0; place < static_cast<int>(places_.size()); ++place) {
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
    std::ranges::sort(repeated, {}, [](const Repeated& pair) {
      return std::pair(pair.again.place - pair.first.place, pair.again.place);
    });
    return repeated;
  }

 private:
  MemoryIndex memory(int number) const { return shadow_.memory(number); }

  std::optional<Gather> gather_at(int place) const {
    const Instruction& i = *places_[index(place)];
    const int wait = shadow_.partners[index(place)];
    if (i.kind != Kind::call || !i.op->issues || !i.op->in_place || wait < place ||
        i.op->communicates != Communicates::all_gather) {
      return std::nullopt;
    }
    Gather gather{.place = place, .wait = wait, .memory = memory(i.in[0])};
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      const bool is_written = i.op->writes(i.op->place_of(k, i.in.size()).operand);
      if (is_written && memory(i.in[k]) != gather.memory) {
        return std::nullopt;
      }
    }
    const Memory& one = shadow_.memories[gather.memory];
    const Instruction& made = *places_[index(one.first)];
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
    const Instruction& a = *places_[index(first.place)];
    const Instruction& b = *places_[index(again.place)];
    const auto same_view = [&](int x, int y) {
      return view_in_words(shadow_.tensors[index(x)]) == view_in_words(shadow_.tensors[index(y)]);
    };
    const auto& changes = values_.changes[again.memory];
    return first.memory != again.memory && a.op == b.op && a.in.size() == b.in.size() &&
           shadow_.memories[first.memory].bytes == shadow_.memories[again.memory].bytes &&
           same_view(first.number, again.number) && std::ranges::equal(a.in, b.in, same_view) &&
           values_.contents_before(again.place, first.memory) ==
               values_.contents_before(again.wait + 1, again.memory) &&
           values_.contents_before(again.place, first.memory) >= 0 &&
           changes.back().place <= again.wait;
  }

  std::vector<const Instruction*> places_;
  const Shadow& shadow_;
  ValueNames names_;
  Values values_;
};

/// The program without the later gathers.
Program without(const Program& program, std::span<const Repeated> repeated) {
  Program changed = program;
  std::vector<Repeated> in_order(repeated.begin(), repeated.end());
  std::ranges::sort(in_order, {}, [](const Repeated& pair) { return pair.again.place; });
  std::vector<int> number_of(program.tensors.size());
  std::iota(number_of.begin(), number_of.end(), 0);
  std::vector<bool> removed(places_of(program).size());
  for (const auto& [first, again] : in_order) {
    number_of[index(again.number)] = number_of[index(first.number)];
    for (const int place : {again.made, again.place, again.wait}) {
      removed[index(place)] = true;
    }
  }
  int place = 0;
  for (Section& section : changed.sections) {
    std::erase_if(section.instructions, [&](Instruction& i) {
      renumber(i, number_of);
      return removed[index(place++)];
    });
  }
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
  std::vector<Repeated> repeated = Finder(program, Analysis(program)).find();
  if (most >= 0 && repeated.size() > index(most)) {
    repeated.resize(index(most));
  }
  replace(program, without(program, repeated));
  return static_cast<int>(repeated.size());
}

void keep_gathers_within(Program& program, std::int64_t budget) {
  std::vector<Repeated> repeated = Finder(program, Analysis(program)).find();
  for (; !repeated.empty(); repeated.pop_back()) {
    Program changed = without(program, repeated);
    if (planned_bytes(changed) <= budget) {
      replace(program, std::move(changed));
      return;
    }
  }
}

}  // namespace tessera::graph
