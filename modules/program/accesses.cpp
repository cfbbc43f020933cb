module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :accesses;
import :shadow;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

void add(std::vector<MemoryIndex>& memories, MemoryIndex memory) {
  if (std::ranges::find(memories, memory) == memories.end()) {
    memories.push_back(memory);
  }
}

bool meet(const std::vector<MemoryIndex>& a, const std::vector<MemoryIndex>& b) {
  return std::ranges::any_of(
      a, [&](MemoryIndex memory) { return std::ranges::find(b, memory) != b.end(); });
}

Access access_of(const Instruction& i, const Shadow& shadow) {
  Access access;
  const auto memory = [&](int number) { return shadow.memory_of[index(number)]; };
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    if (i.in[k] < 0) {
      continue;
    }
    const bool writes = i.kind == Kind::release || i.kind == Kind::restore ||
                        (i.kind == Kind::call && i.op->in_place &&
                         i.op->writes(i.op->place_of(k, i.in.size()).operand));
    if (writes) {
      add(access.writes, memory(i.in[k]));
    } else if (i.kind != Kind::alias && !(i.kind == Kind::call && i.op->view != nullptr)) {
      add(access.reads, memory(i.in[k]));
    }
  }
  for (const int number : i.out) {
    if (number < 0) {
      continue;
    }
    const bool is_view = std::ranges::any_of(
        i.in, [&](int operand) { return operand >= 0 && memory(operand) == memory(number); });
    if (!is_view) {
      add(access.writes, memory(number));
    }
  }
  if (i.kind == Kind::call && i.op->view != nullptr && !access.writes.empty()) {
    add(access.reads, memory(i.in[0]));  // a copy here
  }
  access.ordered =
      i.kind == Kind::check || (i.kind == Kind::call && i.op->communicates != Communicates::none);
  return access;
}

}  // namespace

std::vector<const Instruction*> places_of(const Program& program) {
  std::vector<const Instruction*> all;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      all.push_back(&i);
    }
  }
  return all;
}

std::vector<Access> accesses_of(const Program& program, const Shadow& shadow) {
  std::vector<Access> accesses;
  std::map<const CallGroup*, int> groups;
  const std::vector<const Instruction*> places = places_of(program);
  const auto leaves_memory = [&](const Instruction& issue) {
    return std::ranges::any_of(operands_left_to_readers(issue), [&](int number) {
      return !shadow.memories[shadow.memory_of[index(number)]].is_input;
    });
  };
  for (const Instruction* i : places) {
    Access access = access_of(*i, shadow);
    const int place = static_cast<int>(accesses.size());
    const int partner = shadow.partners[index(place)];
    if (partner > place) {
      access.completed = partner;
      access.issues_in =
          groups.try_emplace(group_of(*i), static_cast<int>(groups.size())).first->second;
    } else if (partner >= 0) {
      access.issued = partner;
      const Access& issued = accesses[index(partner)];
      access.leaves_in = leaves_memory(*places[index(partner)]) ? issued.issues_in : -1;
      for (const MemoryIndex memory : issued.reads) {
        add(access.reads, memory);
      }
      for (const MemoryIndex memory : issued.writes) {
        add(access.writes, memory);
      }
    }
    accesses.push_back(std::move(access));
  }
  return accesses;
}

bool conflict(const Access& a, const Access& b) {
  const bool frees = (a.issues_in >= 0 && a.issues_in == b.leaves_in) ||
                     (b.issues_in >= 0 && b.issues_in == a.leaves_in);
  return frees || (a.ordered && b.ordered) || meet(a.writes, b.writes) || meet(a.writes, b.reads) ||
         meet(a.reads, b.writes);
}

bool is_pure_call(const Instruction& i, const Access& access) {
  return i.kind == Kind::call && !i.op->in_place && !access.ordered && !i.op->issues &&
         !i.out.empty() && std::ranges::none_of(i.out, [](int number) { return number < 0; });
}

bool copies_operand(const Instruction& i, const Access& access) {
  static const std::array<const Op*, 2> copies = {&find_op("clone"), &find_op("contiguous")};
  return i.kind == Kind::call && std::ranges::find(copies, i.op) != copies.end() &&
         i.in.size() == 1 && i.in[0] >= 0 && i.out.size() == 1 && i.out[0] >= 0 &&
         access.writes.size() == 1;
}

namespace {

bool is_pointwise(const Instruction& i, const Shadow& shadow) {
  if (i.op->element == nullptr) {
    return false;
  }
  std::vector<Tensor> operands;
  for (const int number : i.in) {
    operands.push_back(number < 0 ? Tensor() : shadow.tensors[index(number)]);
  }
  const Element element = i.op->element({*i.op, operands, i.attributes});
  return element && !element.of_rows;
}

/// Alignment of the memory of tensors of their own.
constexpr std::int64_t alignment = 64;

}  // namespace

bool is_same_of_copy(const Instruction& i, const Tensor& original, const Shadow& shadow) {
  if (i.kind != Kind::call || i.op->communicates != Communicates::none || i.op->issues ||
      i.op->completes || i.op->view != nullptr) {
    return false;
  }
  const std::int64_t begin =
      original.offset() * static_cast<std::int64_t>(size_of(original.dtype()));
  return original.is_contiguous() ? i.op->flops == nullptr || begin % alignment == 0
                                  : is_pointwise(i, shadow);
}

std::string place_in_words(const Program& program, int place) {
  for (const Section& section : program.sections) {
    const auto count = static_cast<int>(section.instructions.size());
    if (place < count) {
      return fmt::format("section '{}', instruction {} ({})", name_of(section.kind), place + 1,
                         tessera::to_text(program, section.instructions[index(place)]));
    }
    place -= count;
  }
  return "the end";
}

std::int64_t peak_bytes(const Shadow& shadow) {
  std::vector<std::int64_t> change(index(shadow.places) + 2);
  for (const Memory& memory : shadow.memories) {
    if (!memory.is_input && !memory.elsewhere) {
      change[index(memory.first)] += memory.bytes;
      change[index(memory.last) + 1] -= memory.bytes;
    }
  }
  std::int64_t bytes = 0;
  std::int64_t most = 0;
  for (const std::int64_t more : change) {
    bytes += more;
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace tessera::graph
