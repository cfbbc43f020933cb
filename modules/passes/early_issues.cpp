// Collectives are issued as early as their operands permit.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Makes memory or a view, and computes nothing.
bool prepares(const Instruction& i) { return i.kind == Kind::empty || i.kind == Kind::alias; }

/// Instructions that move together: what any of them uses, so that one look at an instruction
/// before them says whether they may pass it.
class Moving {
 public:
  explicit Moving(const Analysis& known)
      : accesses_(known.state().accesses),
        operand_(known.state().shadow.tensors.size(), 0),
        read_(known.state().shadow.memories.size(), 0),
        written_(read_) {}

  void clear() {
    ++round_;
    ordered_ = false;
    issues_in_ = -1;
  }

  void add(const Instruction& i, int place) {
    for (const int number : i.in) {
      if (number >= 0) {
        operand_[index(number)] = round_;
      }
    }
    const Access& access = accesses_[index(place)];
    mark(read_, access.reads);
    mark(written_, access.writes);
    ordered_ = ordered_ || access.ordered;
    issues_in_ = std::max(issues_in_, access.issues_in);  // one of them issues
  }

  bool need(const Instruction& i, int place) const {
    const Access& access = accesses_[index(place)];
    return (ordered_ && access.ordered) || (issues_in_ >= 0 && issues_in_ == access.leaves_in) ||
           any(written_, access.writes) || any(read_, access.writes) ||
           any(written_, access.reads) || is_operand(i.out);
  }

 private:
  void mark(ByMemory<int>& marks, const std::vector<MemoryIndex>& memories) const {
    for (const MemoryIndex memory : memories) {
      marks[memory] = round_;
    }
  }
  bool any(const ByMemory<int>& marks, const std::vector<MemoryIndex>& memories) const {
    return std::ranges::any_of(memories,
                               [&](MemoryIndex memory) { return marks[memory] == round_; });
  }
  bool is_operand(const std::vector<int>& numbers) const {
    return std::ranges::any_of(
        numbers, [&](int number) { return number >= 0 && operand_[index(number)] == round_; });
  }

  const std::vector<Access>& accesses_;
  std::vector<int> operand_;  // by number: the last round in which it is an operand
  ByMemory<int> read_;
  ByMemory<int> written_;
  int round_ = 0;
  bool ordered_ = false;
  int issues_in_ = -1;
};

/// The bytes that are needed at each position of an order of instructions. A move changes them only
/// between the positions that it changes.
class Profile {
 public:
  Profile(const Program& program, const Shadow& shadow)
      : shadow_(shadow),
        uses_(index(shadow.places)),
        live_(index(shadow.places), 0),
        most_(graph::peak_bytes(shadow)),
        new_first_(shadow.memories.size(), -1),
        new_last_(shadow.memories.size(), -1) {
    const std::vector<const Instruction*> places = places_of(program);
    for (std::size_t place = 0; place < places.size(); ++place) {
      add_uses(*places[place], uses_[place]);
      const int issue = shadow.partners[place];
      if (issue >= 0 && index(issue) < place) {
        add_uses(*places[index(issue)], uses_[place]);
      }
    }
    for (const MemoryIndex m : shadow.memories.keys()) {
      const Memory& memory = shadow.memories[m];
      first_.add(memory.first);
      last_.add(memory.last);
      if (!memory.is_input && memory.last < shadow.places) {
        uses_[index(memory.last)].push_back(m);  // until other ranks have read it
      }
    }
    fill_live();
  }

  /// Puts places into the positions from `begin` on, where no position then needs more than the
  /// program did. They were there before, in another order.
  bool reorder(int begin, std::span<const int> order) {
    const int end = begin + static_cast<int>(order.size());
    const std::vector<MemoryIndex> touched = lifetimes_in(begin, order);
    std::vector<std::int64_t> change(order.size() + 1, 0);
    change[0] = live_[index(begin)];
    for (const MemoryIndex memory : touched) {
      const std::int64_t bytes = shadow_.memories[memory].bytes;
      if (first_[memory] == begin) {
        change[0] -= bytes;
      }
      if (first_[memory] >= begin) {
        change[index(new_first_[memory] - begin)] += bytes;
      }
      if (last_[memory] < end) {
        change[index(new_last_[memory] + 1 - begin)] -= bytes;
      }
    }
    for (std::size_t k = 1; k < order.size(); ++k) {
      change[k] += change[k - 1];
    }
    change.pop_back();
    const bool fits = std::ranges::max(change) <= most_;
    if (fits) {
      std::ranges::copy(change, live_.begin() + begin);
    }
    for (const MemoryIndex memory : touched) {
      int& first = first_[memory];
      int& last = last_[memory];
      first = fits && first >= begin ? new_first_[memory] : first;
      last = fits && last < end ? new_last_[memory] : last;
      new_first_[memory] = -1;
    }
    return fits;
  }

 private:
  void add_uses(const Instruction& i, std::vector<MemoryIndex>& uses) const {
    for (const std::vector<int>* numbers : {&i.in, &i.out}) {
      for (const int number : *numbers) {
        if (number >= 0 && !shadow_.memories[shadow_.memory_of[index(number)]].is_input) {
          uses.push_back(shadow_.memory(number));
        }
      }
    }
  }

  void fill_live() {
    std::vector<std::int64_t> change(live_.size() + 2, 0);
    for (const Memory& memory : shadow_.memories) {
      if (!memory.is_input) {
        change[index(memory.first)] += memory.bytes;
        change[index(memory.last) + 1] -= memory.bytes;
      }
    }
    std::int64_t bytes = 0;
    for (std::size_t position = 0; position < live_.size(); ++position) {
      bytes += change[position];
      live_[position] = bytes;
    }
  }

  /// Memories that these places use, with their new first and last positions.
  std::vector<MemoryIndex> lifetimes_in(int begin, std::span<const int> order) {
    std::vector<MemoryIndex> touched;
    int position = begin;
    for (const int place : order) {
      for (const MemoryIndex memory : uses_[index(place)]) {
        if (new_first_[memory] < 0) {
          touched.push_back(memory);
          new_first_[memory] = position;
        }
        new_last_[memory] = position;
      }
      ++position;
    }
    return touched;
  }

  const Shadow& shadow_;
  std::vector<std::vector<MemoryIndex>> uses_;  // by place: memories that are no inputs
  ByMemory<int> first_;                         // positions
  ByMemory<int> last_;
  std::vector<std::int64_t> live_;  // by position
  std::int64_t most_;
  ByMemory<int> new_first_;  // within reorder(); else -1
  ByMemory<int> new_last_;
};

class Issues {
 public:
  Issues(Program& program, const Analysis& known)
      : program_(program),
        places_(places_of(program)),
        moving_(known),
        profile_(program, known.state().shadow) {}

  void advance() {
    int begin = 0;
    for (Section& section : program_.sections) {
      const int end = begin + static_cast<int>(section.instructions.size());
      for (int place = begin; place < end; ++place) {
        order_.push_back(place);
      }
      for (int position = begin; position < end; ++position) {
        const Instruction& i = at(position);
        if (i.kind == Kind::call && i.op->issues) {
          advance(begin, position);
        }
      }
      begin = end;
    }
    arrange();
  }

 private:
  const Instruction& at(int position) const { return *places_[index(order_[index(position)])]; }

  /// Moves an instruction, and what prepares its operands, before those that they do not need.
  void advance(int begin, int position) {
    moving_.clear();
    moving_.add(at(position), order_[index(position)]);
    std::vector<int> moved = {order_[index(position)]};  // the last one first
    std::vector<int> passed;
    while (position > begin) {
      const int place = order_[index(position - 1)];
      if (!moving_.need(*places_[index(place)], place)) {
        passed.push_back(place);
      } else if (prepares(*places_[index(place)])) {
        moved.push_back(place);
        moving_.add(*places_[index(place)], place);
      } else {
        break;
      }
      --position;
    }
    if (passed.empty()) {
      return;
    }
    std::vector<int> order(moved.rbegin(), moved.rend());
    order.insert(order.end(), passed.rbegin(), passed.rend());
    if (profile_.reorder(position, order)) {
      std::ranges::copy(order, order_.begin() + position);
    }
  }

  void arrange() {
    std::vector<Instruction> all;
    for (Section& section : program_.sections) {
      std::ranges::move(section.instructions, std::back_inserter(all));
    }
    std::size_t position = 0;
    for (Section& section : program_.sections) {
      for (Instruction& i : section.instructions) {
        i = std::move(all[index(order_[position++])]);
      }
    }
  }

  Program& program_;
  std::vector<const Instruction*> places_;
  std::vector<int> order_;  // places, by position
  Moving moving_;
  Profile profile_;
};

}  // namespace

/// One call after the other; a move that would need more memory at once than the program does is
/// not made. No call passes other communication, so that ranks agree on the order of all of it
/// whatever their programs are.
void advance_issues(Program& program, const Analysis& known) { Issues(program, known).advance(); }

}  // namespace tessera::graph
