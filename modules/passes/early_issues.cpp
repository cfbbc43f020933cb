// Collectives are issued as early as their operands permit.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
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

/// Where an instruction is in the new order.
struct PositionKind {
  static constexpr bool in_order = true;
};
using Position = Index<PositionKind>;
template <class T>
using ByPosition = Table<Position, T>;

/// Makes memory or a view, and computes nothing.
bool prepares(const Instruction& i) { return i.kind == Kind::empty || i.kind == Kind::alias; }

/// Instructions that move together: what any of them uses, so that one look at an instruction
/// before them says whether they may pass it.
class MovingGroup {
 public:
  explicit MovingGroup(const Analysis& known)
      : accesses_(known.state().accesses),
        operand_(known.state().shadow.tensors.size(), 0),
        read_(known.state().shadow.memories.size(), 0),
        written_(read_) {}

  void clear() {
    ++round_;
    ordered_ = false;
    issues_in_ = {};
  }

  void add(const Instruction& i, PlaceIndex place) {
    for (const TensorIndex number : i.in) {
      if (number.exists()) {
        operand_[number] = round_;
      }
    }
    const Access& access = accesses_[place];
    mark(read_, access.reads);
    mark(written_, access.writes);
    ordered_ = ordered_ || access.ordered;
    issues_in_ = std::max(issues_in_, access.issues_in);  // one of them issues
  }

  bool need(const Instruction& i, PlaceIndex place) const {
    const Access& access = accesses_[place];
    return (ordered_ && access.ordered) ||
           (issues_in_.exists() && issues_in_ == access.leaves_in) ||
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
  bool is_operand(const std::vector<TensorIndex>& numbers) const {
    return std::ranges::any_of(
        numbers, [&](TensorIndex number) { return number.exists() && operand_[number] == round_; });
  }

  const ByPlace<Access>& accesses_;
  ByTensor<int> operand_;  // the last round in which it is an operand
  ByMemory<int> read_;
  ByMemory<int> written_;
  int round_ = 0;
  bool ordered_ = false;
  GroupIndex issues_in_;
};

/// The bytes that are needed at each position of an order of instructions. A move changes them only
/// between the positions that it changes.
class Profile {
 public:
  Profile(const Program& program, const Analysis& known)
      : shadow_(known.state().shadow),
        uses_(shadow_.partners.size()),
        live_(shadow_.partners.size(), 0),
        most_(known.peak_bytes()),
        new_first_(shadow_.memories.size()),
        new_last_(shadow_.memories.size()) {
    const ByMemory<std::vector<PlaceIndex>> uses = uses_of(program, known);
    for (const MemoryIndex m : shadow_.memories.keys()) {
      const Memory& memory = shadow_.memories[m];
      first_.add(Position(memory.first.number));
      last_.add(Position(memory.last.number));
      for (std::size_t k = 0; k < uses[m].size() && !memory.is_input; ++k) {
        uses_[uses[m][k]].push_back(m);
      }
      if (!memory.is_input && memory.last < shadow_.end()) {
        uses_[memory.last].push_back(m);  // until other ranks have read it
      }
    }
    fill_live();
  }

  /// Puts places into the positions from `begin` on, where no position then needs more than the
  /// program did. They were there before, in another order.
  bool reorder(Position begin, std::span<const PlaceIndex> order) {
    const Position end = begin + static_cast<int>(order.size());
    const std::vector<MemoryIndex> touched = lifetimes_in(begin, order);
    std::vector<std::int64_t> change(order.size() + 1, 0);
    const auto change_at = [&](Position position) -> std::int64_t& {
      return change[static_cast<std::size_t>(position - begin)];
    };
    change[0] = live_[begin];
    for (const MemoryIndex memory : touched) {
      const std::int64_t bytes = shadow_.memories[memory].bytes;
      if (first_[memory] == begin) {
        change[0] -= bytes;
      }
      if (first_[memory] >= begin) {
        change_at(new_first_[memory]) += bytes;
      }
      if (last_[memory] < end) {
        change_at(new_last_[memory] + 1) -= bytes;
      }
    }
    std::partial_sum(change.begin(), change.end(), change.begin());
    change.pop_back();
    const bool fits = std::ranges::max(change) <= most_;
    if (fits) {
      std::ranges::copy(change, live_.begin() + begin.number);
    }
    for (const MemoryIndex memory : touched) {
      Position& first = first_[memory];
      Position& last = last_[memory];
      first = fits && first >= begin ? new_first_[memory] : first;
      last = fits && last < end ? new_last_[memory] : last;
      new_first_[memory] = {};
    }
    return fits;
  }

 private:
  void fill_live() {
    const std::size_t positions = live_.size();
    live_.resize(positions + 2);  // at first: how they change
    for (const MemoryIndex m : first_.keys()) {
      const Memory& memory = shadow_.memories[m];
      live_[first_[m]] += memory.is_input ? 0 : memory.bytes;
      live_[last_[m] + 1] -= memory.is_input ? 0 : memory.bytes;
    }
    std::partial_sum(live_.begin(), live_.end(), live_.begin());
    live_.resize(positions);
  }

  /// Memories that these places use, with their new first and last positions.
  std::vector<MemoryIndex> lifetimes_in(Position begin, std::span<const PlaceIndex> order) {
    std::vector<MemoryIndex> touched;
    Position position = begin;
    for (const PlaceIndex place : order) {
      for (const MemoryIndex memory : uses_[place]) {
        if (!new_first_[memory].exists()) {
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
  ByPlace<std::vector<MemoryIndex>> uses_;  // memories that are no inputs
  ByMemory<Position> first_;
  ByMemory<Position> last_;
  ByPosition<std::int64_t> live_;
  std::int64_t most_;
  ByMemory<Position> new_first_;  // within reorder(); else none
  ByMemory<Position> new_last_;
};

class EarlyIssues {
 public:
  EarlyIssues(Program& program, const Analysis& known)
      : program_(program), places_(places_of(program)), moving_(known), profile_(program, known) {
    for (const PlaceIndex place : places_.keys()) {
      order_.add(place);
    }
  }

  void advance() {
    Position begin(0);
    for (const Section& section : program_.sections) {
      const Position end = begin + static_cast<int>(section.instructions.size());
      for (const Position position : Indices(begin, end)) {
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
  const Instruction& at(Position position) const { return *places_[order_[position]]; }

  /// Moves an instruction, and what prepares its operands, before those that they do not need.
  void advance(Position begin, Position position) {
    moving_.clear();
    moving_.add(at(position), order_[position]);
    std::vector<PlaceIndex> moved = {order_[position]};  // the last one first
    std::vector<PlaceIndex> passed;
    for (; position > begin; --position) {
      const PlaceIndex place = order_[position - 1];
      if (!moving_.need(*places_[place], place)) {
        passed.push_back(place);
      } else if (prepares(*places_[place])) {
        moved.push_back(place);
        moving_.add(*places_[place], place);
      } else {
        break;
      }
    }
    if (passed.empty()) {
      return;
    }
    std::vector<PlaceIndex> order(moved.rbegin(), moved.rend());
    order.insert(order.end(), passed.rbegin(), passed.rend());
    if (profile_.reorder(position, order)) {
      std::ranges::copy(order, order_.begin() + position.number);
    }
  }

  void arrange() {
    ByPlace<Instruction> all;
    for (Section& section : program_.sections) {
      for (Instruction& i : section.instructions) {
        all.add(std::move(i));
      }
    }
    auto next = order_.begin();
    for (Section& section : program_.sections) {
      for (Instruction& i : section.instructions) {
        i = std::move(all[*next++]);
      }
    }
  }

  Program& program_;
  ByPlace<const Instruction*> places_;
  ByPosition<PlaceIndex> order_;
  MovingGroup moving_;
  Profile profile_;
};

}  // namespace

/// One call after the other; a move that would need more memory at once than the program does is
/// not made. No call passes other communication, so that ranks agree on the order of all of it
/// whatever their programs are.
void advance_issues(Program& program, const Analysis& known) {
  EarlyIssues(program, known).advance();
}

}  // namespace tessera::graph
