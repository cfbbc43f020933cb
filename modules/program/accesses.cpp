module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
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
  const auto memory = [&](TensorIndex number) { return shadow.memory(number); };
  for (std::size_t k = 0; k < i.in.size(); ++k) {
    if (!i.in[k].exists()) {
      continue;
    }
    if (i.kind == Kind::release || i.kind == Kind::restore || i.writes(k)) {
      add(access.writes, memory(i.in[k]));
    } else if (i.kind != Kind::alias && !(i.kind == Kind::call && i.op->view != nullptr)) {
      add(access.reads, memory(i.in[k]));
    }
  }
  for (const TensorIndex number : i.out) {
    if (!number.exists()) {
      continue;
    }
    const bool is_view = std::ranges::any_of(
        i.in, [&](TensorIndex operand) { return memory(operand) == memory(number); });
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

ByPlace<const Instruction*> places_of(const Program& program) {
  ByPlace<const Instruction*> all;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      all.add(&i);
    }
  }
  return all;
}

ByPlace<Access> accesses_of(const Program& program, const Shadow& shadow) {
  ByPlace<Access> accesses;
  std::map<const CallGroup*, GroupIndex> groups;
  const ByPlace<const Instruction*> places = places_of(program);
  const auto leaves_memory = [&](const Instruction& issue) {
    return std::ranges::any_of(operands_left_to_readers(issue), [&](TensorIndex number) {
      return !shadow.memories[shadow.memory(number)].is_input;
    });
  };
  for (const Instruction* i : places) {
    Access access = access_of(*i, shadow);
    const PlaceIndex place = accesses.next();
    const PlaceIndex partner = shadow.partners[place];
    if (partner > place) {
      access.completed = partner;
      access.issues_in =
          groups.try_emplace(group_of(*i), static_cast<int>(groups.size())).first->second;
    } else if (partner.exists()) {
      access.issued = partner;
      const Access& issued = accesses[partner];
      access.leaves_in = leaves_memory(*places[partner]) ? issued.issues_in : GroupIndex();
      for (const MemoryIndex memory : issued.reads) {
        add(access.reads, memory);
      }
      for (const MemoryIndex memory : issued.writes) {
        add(access.writes, memory);
      }
    }
    accesses.add(std::move(access));
  }
  return accesses;
}

bool conflict(const Access& a, const Access& b) {
  const bool frees = (a.issues_in.exists() && a.issues_in == b.leaves_in) ||
                     (b.issues_in.exists() && b.issues_in == a.leaves_in);
  return frees || (a.ordered && b.ordered) || meet(a.writes, b.writes) || meet(a.writes, b.reads) ||
         meet(a.reads, b.writes);
}

bool is_pure_call(const Instruction& i, const Access& access) {
  return i.kind == Kind::call && !i.op->in_place && !access.ordered && !i.op->issues &&
         !i.out.empty() &&
         std::ranges::none_of(i.out, [](TensorIndex number) { return !number.exists(); });
}

bool copies_operand(const Instruction& i, const Access& access) {
  static const std::array<const Op*, 2> copies = {&find_op("clone"), &find_op("contiguous")};
  return i.kind == Kind::call && std::ranges::find(copies, i.op) != copies.end() &&
         i.in.size() == 1 && i.in[0].exists() && i.out.size() == 1 && i.out[0].exists() &&
         access.writes.size() == 1;
}

bool copies_memory(const Instruction& i, const Shadow& shadow) {
  static const Op& copy = find_op("copy_");
  if (i.kind != Kind::call || i.op != &copy) {
    return false;
  }
  const Tensor& into = shadow.at(i.in[0]);
  const Tensor& from = shadow.at(i.in[1]);
  return into.dtype() == from.dtype() && into.shape() == from.shape() &&
         shadow.is_all_of_memory(i.in[0]) && shadow.is_all_of_memory(i.in[1]);
}

namespace {

bool is_pointwise(const Instruction& i, const Shadow& shadow) {
  if (i.op->element == nullptr) {
    return false;
  }
  const Element element = i.op->element({*i.op, shadow.at(i.in), i.attributes});
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

std::string place_in_words(const Program& program, PlaceIndex place) {
  auto at = static_cast<std::size_t>(place.number);
  for (const Section& section : program.sections) {
    if (at < section.instructions.size()) {
      return fmt::format("section '{}', instruction {} ({})", name_of(section.kind), at + 1,
                         tessera::to_text(program, section.instructions[at]));
    }
    at -= section.instructions.size();
  }
  return "the end";
}

ByPlace<std::int64_t> needed_bytes(const Shadow& shadow) {
  ByPlace<std::int64_t> bytes(shadow.partners.size() + 2, 0);  // at first: how they change
  for (const Memory& memory : shadow.memories) {
    if (!memory.is_input && !memory.elsewhere) {
      bytes[memory.first] += memory.bytes;
      bytes[memory.last + 1] -= memory.bytes;
    }
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  bytes.resize(shadow.partners.size() + 1);
  return bytes;
}

std::int64_t peak_bytes(const Shadow& shadow) { return std::ranges::max(needed_bytes(shadow)); }

}  // namespace tessera::graph
