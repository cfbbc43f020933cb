// Where memories are used, and what calls cost that are made again.
module;
#include <cstdint>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :recompute;
import :recompute_costs;

namespace tessera::graph {

ByMemory<std::vector<int>> uses_of(const Program& program, const Analysis& known) {
  const Shadow& shadow = known.state().shadow;
  const std::vector<const Instruction*> instructions = places_of(program);
  ByMemory<std::vector<int>> all(shadow.memories.size());
  for (int place = 0; place < shadow.places; ++place) {
    const Access& access = known.state().accesses[index(place)];
    const auto use = [&](MemoryIndex memory) {
      std::vector<int>& uses = all[memory];
      if (uses.empty() || uses.back() != place) {
        uses.push_back(place);
      }
    };
    for (const std::vector<int>* numbers :
         {&instructions[index(place)]->in, &instructions[index(place)]->out}) {
      for (const int number : *numbers) {
        if (number >= 0) {
          use(shadow.memory(number));
        }
      }
    }
    for (const std::vector<MemoryIndex>* memories : {&access.reads, &access.writes}) {
      for (const MemoryIndex memory : *memories) {  // also of what is in flight
        use(memory);
      }
    }
  }
  return all;
}

double seconds_of(const Instruction& i, const Shadow& shadow, const ComputeRates& rates) {
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  double moved = 0;
  for (auto [numbers, tensors] : {std::pair(&i.in, &in), std::pair(&i.out, &out)}) {
    for (const int number : *numbers) {
      tensors->push_back(number < 0 ? Tensor() : shadow.tensors[index(number)]);
      if (number >= 0) {
        moved += static_cast<double>(tensors->back().numel()) *
                 static_cast<double>(size_of(tensors->back().dtype()));
      }
    }
  }
  const double flops = i.op->flops == nullptr ? 0 : i.op->flops({*i.op, in, i.attributes}, out);
  return flops / rates.flops + moved / rates.bytes;
}

}  // namespace tessera::graph
