// Collectives are issued as early as their operands permit.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.record;
import :accesses;
import :passes;
import :shadow;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// A section's instructions, with what they do to memories.
struct Draft {
  std::vector<Instruction> instructions;
  std::vector<Access> accesses;
};

/// Makes memory or a view, and computes nothing.
bool prepares(const Instruction& i) { return i.kind == Kind::empty || i.kind == Kind::alias; }

bool must_follow(const Draft& draft, std::size_t later, std::size_t earlier) {
  const std::vector<int>& in = draft.instructions[later].in;
  const auto is_operand = [&](int number) {
    return number >= 0 && std::ranges::find(in, number) != in.end();
  };
  return conflict(draft.accesses[earlier], draft.accesses[later]) ||
         std::ranges::any_of(draft.instructions[earlier].out, is_operand);
}

/// Moves an instruction, and what prepares its operands, before those that they do not need.
/// Returns whether there are such.
bool advance(Draft& draft, std::size_t at) {
  std::vector<std::size_t> moved = {at};  // the last one first
  std::vector<std::size_t> passed;
  for (std::size_t place = at; place-- > 0;) {
    const bool is_needed = std::ranges::any_of(
        moved, [&](std::size_t later) { return must_follow(draft, later, place); });
    if (!is_needed) {
      passed.push_back(place);
    } else if (prepares(draft.instructions[place])) {
      moved.push_back(place);
    } else {
      break;
    }
  }
  std::vector<std::size_t> order(moved.rbegin(), moved.rend());
  order.insert(order.end(), passed.rbegin(), passed.rend());
  const auto first = static_cast<std::ptrdiff_t>(at + 1 - order.size());
  Draft changed;
  for (const std::size_t from : order) {
    changed.instructions.push_back(std::move(draft.instructions[from]));
    changed.accesses.push_back(std::move(draft.accesses[from]));
  }
  std::ranges::move(changed.instructions, draft.instructions.begin() + first);
  std::ranges::move(changed.accesses, draft.accesses.begin() + first);
  return !passed.empty();
}

}  // namespace

/// One call after the other; a move that would need more memory at once than the program does is
/// not made. No call passes other communication, so that ranks agree on the order of all of it
/// whatever their programs are.
void advance_issues(Program& program) {
  const Shadow shadow = shadow_of(program);
  const std::int64_t most = peak_bytes(shadow);
  const std::vector<Access> accesses = accesses_of(program, shadow);
  auto begin = accesses.begin();
  for (std::size_t s = 0; s < program.sections.size(); ++s) {
    const auto count = static_cast<std::ptrdiff_t>(program.sections[s].instructions.size());
    Draft draft{program.sections[s].instructions, {begin, begin + count}};
    begin += count;
    for (std::size_t i = 0; i < draft.instructions.size(); ++i) {
      if (draft.instructions[i].kind != Kind::call || !draft.instructions[i].op->issues) {
        continue;
      }
      Draft moved = draft;
      if (!advance(moved, i)) {
        continue;
      }
      Program changed = program;
      changed.sections[s].instructions = moved.instructions;
      if (peak_bytes(shadow_of(changed)) <= most) {
        program = std::move(changed);
        draft = std::move(moved);
      }
    }
  }
}

}  // namespace tessera::graph
