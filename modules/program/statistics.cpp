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
  for (const TensorIndex number : i.out) {
    bytes += number.exists() ? bytes_of(shadow.at(number)) : 0;
  }
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    if (i.in[k].exists() && i.writes(k)) {
      bytes += bytes_of(shadow.at(i.in[k]));
    }
  }
  return bytes;
}

double flops_of(const Instruction& i, const Shadow& shadow) {
  if (i.op->flops == nullptr) {
    return 0;
  }
  const std::vector<Tensor> in = shadow.at(i.in);
  return i.op->flops(Call{.op = *i.op, .in = in, .attributes = i.attributes}, shadow.at(i.out));
}

/// Category of each memory: that of its first tensor.
ByMemory<std::size_t> categories_of(const Program& program, const Shadow& shadow) {
  ByMemory<std::size_t> categories(shadow.memories.size(), memory_category_count);
  for (const TensorIndex x : program.tensors.keys()) {
    const MemoryIndex memory = shadow.memory(x);
    if (memory.exists() && categories[memory] == memory_category_count) {
      categories[memory] = static_cast<std::size_t>(program.tensors[x].category);
    }
  }
  return categories;
}

void add_live(const Program& program, const Shadow& shadow, ProgramStatistics& statistics) {
  const ByMemory<std::size_t> categories = categories_of(program, shadow);
  ByPlace<CategoryBytes> change(shadow.partners.size() + 2);
  for (const MemoryIndex m : shadow.memories.keys()) {
    const Memory& memory = shadow.memories[m];
    if (memory.elsewhere) {
      continue;
    }
    if (memory.is_input) {
      statistics.inputs[categories[m]] += memory.bytes;
    } else {
      change[memory.first][categories[m]] += memory.bytes;
      change[memory.last + 1][categories[m]] -= memory.bytes;
    }
  }
  ByMemory<bool> released(shadow.memories.size(), false);
  const ByPlace<const Instruction*> places = places_of(program);
  const auto toggle = [&](MemoryIndex m, PlaceIndex place, bool release) {
    if (released[m] != release) {
      released[m] = release;
      change[place][categories[m]] +=
          release ? -shadow.memories[m].bytes : shadow.memories[m].bytes;
    }
  };
  for (const PlaceIndex place : places.keys()) {
    const Kind kind = places[place]->kind;
    if (kind == Kind::release || kind == Kind::restore) {
      toggle(shadow.memory(places[place]->in[0]), place, kind == Kind::release);
    }
  }
  for (const MemoryIndex m : released.keys()) {  // they leave once only
    toggle(m, shadow.memories[m].is_input ? shadow.end() : shadow.memories[m].last + 1, false);
  }
  CategoryBytes now = statistics.inputs;
  for (const PlaceIndex place : places.keys()) {
    for (std::size_t c = 0; c < now.size(); ++c) {
      now[c] += change[place][c];
    }
    statistics.live.add(now);
    if (total_of(now) > statistics.peak) {
      statistics.peak = total_of(now);
      statistics.peak_at = place;
    }
  }
}

}  // namespace

bool is_collective(const Instruction& i) {
  return i.op != nullptr && i.op->communicates != Communicates::none &&
         i.op->communicates != Communicates::waits;
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
      const Phase phase = program.scopes[i->scope].phase;
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

}  // namespace tessera::graph
