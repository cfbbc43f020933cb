// Copies that nobody needs are not made.
module;
#include <algorithm>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :facts;
import :renumbering;

namespace tessera::graph {
namespace {

class Copies {
 public:
  Copies(const Program& program, const Analysis& known)
      : facts_(program, known), uses_(uses_of(program, known)), replacement_(program) {}

  const Replacement& find() {
    for (const PlaceIndex place : facts_.places.keys()) {
      const Instruction& i = facts_.at(place);
      if (copies_operand(i, facts_.accesses[place]) &&
          is_needless(i.out[0], replacement_.instead_of(i.in[0]), place)) {
        replacement_.replace(i.out[0], i.in[0]);
        replacement_.remove(place);
      }
    }
    return replacement_;
  }

 private:
  /// Whether those that use the copy may use what it was copied from, and no more memory is needed.
  bool is_needless(TensorIndex copy, TensorIndex original, PlaceIndex place) {
    const MemoryIndex to = facts_.shadow.memory(copy);
    const MemoryIndex from = facts_.shadow.memory(original);
    const Memory& made = facts_.shadow.memories[to];
    const Memory& kept = facts_.shadow.memories[from];
    const Tensor& x = facts_.shadow.at(original);
    const auto& changes = facts_.values.changes;
    const bool stays = changes[to].size() == 1 && !made.is_output &&
                       (changes[from].empty() || changes[from].back().place <= place);
    PlaceIndex& last = facts_.last[from];
    const bool fits = kept.is_input || kept.bytes <= made.bytes || last >= facts_.last[to];
    // Elements that are far from each other are read faster from a copy, but for those of a few
    // that were expanded.
    const bool is_near = x.is_contiguous() || kept.bytes < made.bytes;
    const auto may_use_original = [&](PlaceIndex use) {
      const Instruction& i = facts_.at(use);
      const auto is_copy_or_other = [&](TensorIndex number) {
        return number == copy || facts_.shadow.memory(number) != to;
      };
      // What a copy of a whole memory leaves is described as what it copied.
      const bool is_described =
          !copies_memory(i, facts_.shadow) || facts_.shadow.is_all_of_memory(original);
      return use == place || (is_described && std::ranges::all_of(i.in, is_copy_or_other) &&
                              is_same_of_copy(i, x, facts_.shadow));
    };
    if (!stays || !fits || !is_near || kept.elsewhere ||
        !std::ranges::all_of(uses_[to], may_use_original)) {
      return false;
    }
    last = std::max(last, facts_.last[to]);
    return true;
  }

  ProgramFacts facts_;
  ByMemory<std::vector<PlaceIndex>> uses_;
  Replacement replacement_;
};

}  // namespace

void elide_copies(Program& program, const Analysis& known) {
  Copies(program, known).find().apply(program);
}

}  // namespace tessera::graph
