// Copies that nobody needs are not made.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Copies {
 public:
  Copies(const Program& program, const Analysis& known)
      : places_(places_of(program)),
        shadow_(known.state().shadow),
        accesses_(known.state().accesses),
        values_(values_of(program, known, names_)),
        number_of_(program.tensors.size()),
        users_(shadow_.memories.size()),
        removed_(places_.size(), false) {
    std::iota(number_of_.begin(), number_of_.end(), 0);
    for (const Memory& one : shadow_.memories) {
      last_.add(one.last);
    }
    for (int place = 0; place < shadow_.places; ++place) {
      for (const int number : places_[index(place)]->in) {
        if (number >= 0) {
          users_[shadow_.memory(number)].push_back({place, number});
        }
      }
    }
  }

  void find() {
    for (int place = 0; place < shadow_.places; ++place) {
      const Instruction& i = *places_[index(place)];
      if (copies_operand(i, accesses_[index(place)]) &&
          is_needless(i.out[0], number_of_[index(i.in[0])], place)) {
        number_of_[index(i.out[0])] = number_of_[index(i.in[0])];
        removed_[index(place)] = true;
      }
    }
  }

  bool removed(std::size_t place) const { return removed_[place]; }
  const std::vector<int>& number_of() const { return number_of_; }

 private:
  struct Use {
    int place = 0;
    int number = 0;
  };

  /// Whether those that use the copy may use what it was copied from, and no more memory is needed.
  bool is_needless(int copy, int original, int place) {
    const MemoryIndex to = shadow_.memory(copy);
    const MemoryIndex from = shadow_.memory(original);
    const Memory& made = shadow_.memories[to];
    const Memory& kept = shadow_.memories[from];
    const Tensor& x = shadow_.tensors[index(original)];
    const bool stays =
        values_.changes[to].size() == 1 && !made.is_output &&
        (values_.changes[from].empty() || values_.changes[from].back().place <= place);
    const bool fits = kept.is_input || kept.bytes <= made.bytes || last_[from] >= last_[to];
    // Elements that are far from each other are read faster from a copy, but for those of a few
    // that were expanded.
    const bool is_near = x.is_contiguous() || kept.bytes < made.bytes;
    if (!stays || !fits || !is_near || kept.elsewhere ||
        !std::ranges::all_of(users_[to], [&](const Use& use) {
          return use.number == copy && is_same_of_copy(*places_[index(use.place)], x, shadow_);
        })) {
      return false;
    }
    last_[from] = std::max(last_[from], last_[to]);
    return true;
  }

  std::vector<const Instruction*> places_;
  const Shadow& shadow_;
  const std::vector<Access>& accesses_;
  ValueNames names_;
  Values values_;
  std::vector<int> number_of_;  // what is used instead of a tensor
  ByMemory<std::vector<Use>> users_;
  ByMemory<int> last_;
  std::vector<bool> removed_;  // by place
};

}  // namespace

void elide_copies(Program& program, const Analysis& known) {
  Copies copies(program, known);
  copies.find();
  std::size_t place = 0;
  for (Section& section : program.sections) {
    std::erase_if(section.instructions, [&](Instruction& i) {
      renumber(i, copies.number_of());
      return copies.removed(place++);
    });
  }
}

}  // namespace tessera::graph
