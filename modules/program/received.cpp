// Bytes that a rank receives in a collective: what the operator says (tensor's received_bytes), of
// the program's tensors.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :communication;
import :statistics;

namespace tessera::graph {

std::int64_t received_bytes(const Program& program, const Instruction& i) {
  const CallGroup* const group = group_of(i);
  if (group == nullptr) {
    return 0;
  }
  std::vector<ResultShape> read;
  std::vector<ResultShape> made;
  const auto add = [&](TensorIndex number, std::vector<ResultShape>& to) {
    if (number.exists()) {
      to.push_back({program.tensors[number].shape, program.tensors[number].dtype});
    }
  };
  for (const TensorIndex number : i.out) {
    add(number, made);
  }
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    add(i.in[k], i.writes(k) ? made : read);
  }
  const auto found = std::ranges::find(group->ranks, program.rank);
  return tessera::received_bytes(
      {.op = *i.op,
       .attributes = i.attributes,
       .read = read,
       .made = made,
       .ranks = group->ranks,
       .rank = found == group->ranks.end() ? 0 : static_cast<int>(found - group->ranks.begin())});
}

}  // namespace tessera::graph
