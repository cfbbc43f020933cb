module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.device;
import tessera.tensor;
import :accesses;
import :shadow;
import :statistics;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

std::int64_t bytes_of(const Tensor& x) {
  return x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
}

/// Bytes that a call makes or writes.
std::int64_t result_bytes(const Instruction& i, const Shadow& shadow) {
  std::int64_t bytes = 0;
  for (const int number : i.out) {
    bytes += number < 0 ? 0 : bytes_of(shadow.tensors[index(number)]);
  }
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    if (i.in[k] >= 0 && i.op->in_place && i.op->writes(i.op->place_of(k, i.in.size()).operand)) {
      bytes += bytes_of(shadow.tensors[index(i.in[k])]);
    }
  }
  return bytes;
}

double flops_of(const Instruction& i, const Shadow& shadow) {
  if (i.op->flops == nullptr) {
    return 0;
  }
  const auto tensors_of = [&shadow](const std::vector<int>& numbers) {
    std::vector<Tensor> tensors;
    for (const int number : numbers) {
      tensors.push_back(number < 0 ? Tensor() : shadow.tensors[index(number)]);
    }
    return tensors;
  };
  const std::vector<Tensor> in = tensors_of(i.in);
  const std::vector<Tensor> out = tensors_of(i.out);
  return i.op->flops(Call{.op = *i.op, .in = in, .attributes = i.attributes}, out);
}

/// Category of each memory: that of its first tensor.
ByMemory<std::size_t> categories_of(const Program& program, const Shadow& shadow) {
  ByMemory<std::size_t> categories(shadow.memories.size(), memory_category_count);
  for (std::size_t n = 0; n < program.tensors.size(); ++n) {
    if (shadow.memory_of[n].exists() && categories[shadow.memory_of[n]] == memory_category_count) {
      categories[shadow.memory_of[n]] = static_cast<std::size_t>(program.tensors[n].category);
    }
  }
  return categories;
}

void add_live(const Program& program, const Shadow& shadow, ProgramStatistics& statistics) {
  const ByMemory<std::size_t> categories = categories_of(program, shadow);
  std::vector<CategoryBytes> change(index(shadow.places) + 2);
  for (const MemoryIndex m : shadow.memories.keys()) {
    const Memory& memory = shadow.memories[m];
    if (memory.elsewhere) {
      continue;
    }
    if (memory.is_input) {
      statistics.inputs[categories[m]] += memory.bytes;
    } else {
      change[index(memory.first)][categories[m]] += memory.bytes;
      change[index(memory.last) + 1][categories[m]] -= memory.bytes;
    }
  }
  ByMemory<bool> released(shadow.memories.size(), false);
  const std::vector<const Instruction*> places = places_of(program);
  const auto toggle = [&](MemoryIndex m, std::size_t place, bool release) {
    if (released[m] != release) {
      released[m] = release;
      change[place][categories[m]] +=
          release ? -shadow.memories[m].bytes : shadow.memories[m].bytes;
    }
  };
  for (std::size_t place = 0; place < places.size(); ++place) {
    const Kind kind = places[place]->kind;
    if (kind == Kind::release || kind == Kind::restore) {
      toggle(shadow.memory(places[place]->in[0]), place, kind == Kind::release);
    }
  }
  for (const MemoryIndex m : released.keys()) {  // they leave once only
    toggle(m, shadow.memories[m].is_input ? places.size() : index(shadow.memories[m].last) + 1,
           false);
  }
  CategoryBytes now = statistics.inputs;
  for (std::size_t place = 0; place < places.size(); ++place) {
    for (std::size_t c = 0; c < now.size(); ++c) {
      now[c] += change[place][c];
    }
    statistics.live.push_back(now);
    if (total_of(now) > statistics.peak) {
      statistics.peak = total_of(now);
      statistics.peak_at = static_cast<int>(place);
    }
  }
}

}  // namespace

bool is_collective(const Instruction& i) {
  return i.op != nullptr && i.op->communicates != Communicates::none &&
         i.op->communicates != Communicates::waits;
}

std::int64_t received_bytes(const Program& program, const Instruction& i) {
  const CallGroup* const group = group_of(i);
  if (group == nullptr) {
    return 0;
  }
  const auto ranks = static_cast<std::int64_t>(group->ranks.size());
  std::int64_t read = 0;
  std::int64_t made = 0;
  const auto add = [&](int number, std::int64_t& bytes) {
    if (number >= 0) {
      const ProgramTensor& x = program.tensors[index(number)];
      bytes += x.shape.product() * static_cast<std::int64_t>(size_of(x.dtype));
    }
  };
  for (const int number : i.out) {
    add(number, made);
  }
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    const bool written = i.op->in_place && i.op->writes(i.op->place_of(k, i.in.size()).operand);
    add(i.in[k], written ? made : read);
  }
  switch (i.op->communicates) {
    case Communicates::all_gather:
      return made - read;
    case Communicates::all_to_all:
      return made * (ranks - 1) / ranks;
    case Communicates::reduce_scatter:
      return made * (ranks - 1);
    case Communicates::all_reduce:  // a part of the sums, and the sums of the others
      return 2 * made * (ranks - 1) / ranks;
    default:
      return made;
  }
}

std::int64_t total_of(const CategoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

ProgramStatistics statistics_of(const Program& program) {
  const Shadow shadow = shadow_of(program);
  ProgramStatistics statistics;
  std::map<std::tuple<std::string, Phase, CallGroup>, CollectiveCount> collectives;
  for (const Instruction* i : places_of(program)) {
    if (i->kind != Kind::call) {
      continue;
    }
    ++statistics.calls[i->op->name];
    statistics.flops += flops_of(*i, shadow);
    if (is_collective(*i)) {
      const Phase phase = program.scopes[index(i->scope)].phase;
      const CallGroup group = group_of(*i) == nullptr ? CallGroup() : *group_of(*i);
      CollectiveCount& count = collectives[{i->op->name, phase, group}];
      count.op = i->op->name;
      count.phase = phase;
      count.group = group;
      ++count.calls;
      count.bytes += result_bytes(*i, shadow);
      count.received += received_bytes(program, *i);
    }
  }
  for (auto& [key, count] : collectives) {
    statistics.collectives.push_back(std::move(count));
  }
  add_live(program, shadow, statistics);
  return statistics;
}

std::string instruction_in_words(const Program& program, int place) {
  return place_in_words(program, place);
}

}  // namespace tessera::graph
