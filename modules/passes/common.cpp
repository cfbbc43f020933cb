// Merges calls that compute the same values.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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

constexpr std::int64_t small_bytes = 64;

/// Whether the instruction makes its results, whose values are known from its operands.
bool computes(const Instruction& i, const Access& access) {
  return i.kind == Kind::full || i.kind == Kind::values || is_pure_call(i, access);
}

}  // namespace

void renumber(Instruction& instruction, std::span<const int> number_of) {
  for (int& number : instruction.in) {
    number = number < 0 ? number : number_of[index(number)];
  }
}

/// The earlier results stay where they are needed until the later call anyway, or are as small as a
/// scale. So nothing else is kept longer than the later results would be: an activation that is
/// computed again in backward is not kept from forward instead.
void merge_common(Program& program, const Analysis& analysis) {
  const auto& [shadow, accesses] = analysis.state();
  ValueNames names;
  const Values values = values_of(program, analysis, names);
  const auto memory = [&](int number) { return shadow.memory(number); };
  ByMemory<int> last;
  for (const Memory& one : shadow.memories) {
    last.add(one.last);
  }
  const auto is_constant = [&](int number) { return !values.is_written[memory(number)]; };
  std::vector<int> number_of(program.tensors.size());
  std::iota(number_of.begin(), number_of.end(), 0);
  std::map<int, std::vector<int>> known;  // results, by what computes them
  int place = -1;
  for (Section& section : program.sections) {
    std::erase_if(section.instructions, [&](Instruction& i) {
      ++place;
      renumber(i, number_of);
      const auto at = index(place);
      // Results in new memory only: merging views is the pass `views`.
      if (!computes(i, accesses[at]) || values.calls[at] < 0 ||
          accesses[at].writes.size() != i.out.size() || !std::ranges::all_of(i.out, is_constant)) {
        return false;
      }
      const auto found = known.find(values.calls[at]);
      const bool same = found != known.end() && std::ranges::all_of(found->second, [&](int number) {
                          return last[memory(number)] >= place ||
                                 shadow.memories[memory(number)].bytes <= small_bytes;
                        });
      if (!same) {
        known[values.calls[at]] = i.out;
        return false;
      }
      for (std::size_t k = 0; k < i.out.size(); ++k) {
        number_of[index(i.out[k])] = found->second[k];
        int& end = last[memory(found->second[k])];
        end = std::max(end, last[memory(i.out[k])]);
      }
      return true;
    });
  }
  for (auto& [name, number] : program.outputs) {
    number = number_of[index(number)];
  }
}

}  // namespace tessera::graph
