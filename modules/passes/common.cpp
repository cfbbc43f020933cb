// Merges calls that compute the same values.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :facts;
import :renumbering;
import :headroom;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

constexpr std::int64_t small_bytes = 64;

/// Whether the instruction makes its results, whose values are known from its operands.
bool computes(const Instruction& i, const Access& access) {
  return i.kind == Kind::full || i.kind == Kind::values || is_pure_call(i, access);
}

}  // namespace

/// The earlier results stay where they are needed until the later call anyway, or are as small as a
/// scale, or belong to a result that is needed, if there is room. So nothing else is kept longer
/// than the later results would be: an activation that is computed again in backward is not kept
/// from forward instead.
void merge_common(Program& program, const Analysis& analysis) {
  ProgramFacts facts(program, analysis);
  Headroom room(facts);
  const auto memory = [&](TensorIndex number) { return facts.shadow.memory(number); };
  const auto is_constant = [&](TensorIndex number) {
    return !facts.values.is_written[memory(number)];
  };
  Replacement replacement(program);
  std::map<ValueIndex, std::vector<TensorIndex>> known;  // results, by what computes them
  for (const PlaceIndex place : facts.places.keys()) {
    const Instruction& i = facts.at(place);
    const ValueIndex call = facts.values.calls[place];
    // Results in new memory only: merging views is the pass `views`.
    if (!computes(i, facts.accesses[place]) || !call.exists() ||
        facts.accesses[place].writes.size() != i.out.size() ||
        !std::ranges::all_of(i.out, is_constant)) {
      continue;
    }
    std::vector<TensorIndex>& first = known[call];
    const auto is_there = [&](TensorIndex number) { return facts.last[memory(number)] >= place; };
    const auto is_small = [&](TensorIndex number) {
      return facts.shadow.memories[memory(number)].bytes <= small_bytes;
    };
    const auto stays = [&](TensorIndex number) { return is_there(number) || is_small(number); };
    const auto is_needed = [&](TensorIndex number) {
      return is_there(number) && !is_small(number);
    };
    if (first.empty() || !(std::ranges::all_of(first, stays) ||
                           (std::ranges::any_of(first, is_needed) && room.has(first, place)))) {
      first = i.out;
      continue;
    }
    for (std::size_t k = 0; k < i.out.size(); ++k) {
      replacement.replace(i.out[k], first[k]);
    }
    room.keep(first, i.out, place);
    replacement.remove(place);
  }
  replacement.apply(program);
}

}  // namespace tessera::graph
