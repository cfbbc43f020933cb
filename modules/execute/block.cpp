// Which memories of a program are in one block, and where.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :block;
import :chains;
import :memory_plan;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Operators that have an in-place form: their kernels may write operand 0.
const std::set<const Op*>& with_in_place_form() {
  static const std::set<const Op*> all = [] {
    std::set<const Op*> found;
    for (const Op* op : all_ops()) {
      if (op->in_place && op->form_of != nullptr &&
          op->operands.size() == op->form_of->operands.size()) {
        found.insert(op->form_of);
      }
    }
    return found;
  }();
  return all;
}

/// The memory that the result of an instruction takes over from an operand that ends there, as the
/// in-place form of the operator would; -1: none.
int taken_over(const Instruction& i, int place, const Shadow& shadow) {
  if (i.kind != Kind::call || i.in.empty() || i.out.size() != 1 || i.in[0] < 0 || i.out[0] < 0 ||
      !with_in_place_form().contains(i.op)) {
    return -1;
  }
  const int from = shadow.memory_of[index(i.in[0])];
  const int to = shadow.memory_of[index(i.out[0])];
  const Memory& old = shadow.memories[index(from)];
  const Memory& made = shadow.memories[index(to)];
  const Tensor& operand = shadow.tensors[index(i.in[0])];
  const Tensor& result = shadow.tensors[index(i.out[0])];
  const auto shared = std::ranges::count_if(
      i.in, [&](int number) { return number >= 0 && shadow.memory_of[index(number)] == from; });
  const bool fits = from != to && shared == 1 && old.last == place && made.first == place &&
                    old.bytes == made.bytes && operand.is_contiguous() && operand.offset() == 0 &&
                    operand.shape() == result.shape() && operand.dtype() == result.dtype();
  return fits ? from : -1;
}

}  // namespace

bool is_copy(const Instruction& i, const Shadow& shadow) {
  return i.kind == Kind::call && i.op->view != nullptr && i.out[0] >= 0 &&
         shadow.memory_of[index(i.out[0])] != shadow.memory_of[index(i.in[0])];
}

bool is_called(const Instruction& i, const Shadow& shadow) {
  // Their copies have the operand's elements in row-major order.
  static const std::set<std::string_view> keep_order = {"contiguous", "reshape"};
  const bool unused = std::ranges::find(i.out, -1) != i.out.end();
  return i.kind == Kind::call &&
         (unused || (is_copy(i, shadow) && !keep_order.contains(i.op->name)));
}

Block block_of(const Program& program, const Shadow& shadow, std::span<const Chain> chains) {
  Block block;
  const std::size_t count = shadow.memories.size();
  block.offsets.assign(count, -1);
  block.workspaces.assign(index(shadow.places), -1);
  block.workspace_bytes.assign(index(shadow.places), 0);
  std::vector<bool> fixed(count);
  for (std::size_t m = 0; m < count; ++m) {
    const Memory& memory = shadow.memories[m];
    fixed[m] = !memory.is_input && !memory.read_later && !memory.inside && !memory.elsewhere;
  }
  std::vector<MemoryPiece> pieces;
  const auto each = [&](const auto& body) {
    int place = 0;
    for (const Section& section : program.sections) {
      for (const Instruction& i : section.instructions) {
        body(i, place++);
      }
    }
  };
  each([&](const Instruction& i, int) {
    if (is_called(i, shadow)) {
      for (const int number : i.out) {
        if (number >= 0) {
          fixed[index(shadow.memory_of[index(number)])] = false;
        }
      }
    }
  });
  constexpr std::size_t none = ~std::size_t{0};
  std::vector<std::size_t> piece_of(count, none);
  const auto add_piece = [&](std::size_t m) {
    const Memory& memory = shadow.memories[m];
    piece_of[m] = pieces.size();
    pieces.push_back({memory.bytes, memory.first, memory.last});
  };
  const std::vector<int> in_chains = places_in_chains(chains, shadow);
  std::vector<std::pair<std::size_t, int>> workspaces;  // piece and place
  std::set<int> places;                                 // of calls that chains make
  for (const Chain& chain : chains) {
    for (const Chain::ChainCall& call : chain.calls) {
      places.insert(call.place);
    }
  }
  each([&](const Instruction& i, int place) {
    const int taken = taken_over(i, place, shadow);
    for (const int number : i.out) {
      const int memory = number < 0 ? -1 : shadow.memory_of[index(number)];
      if (memory < 0 || !fixed[index(memory)] || piece_of[index(memory)] != none) {
        continue;
      }
      const int in_chain = in_chains[index(memory)];
      const int from = in_chain == not_of_chain ? taken : in_chain;
      if (from >= 0 && fixed[index(from)] && piece_of[index(from)] != none) {
        piece_of[index(memory)] = piece_of[index(from)];
        pieces[piece_of[index(from)]].last = shadow.memories[index(memory)].last;
      } else {
        add_piece(index(memory));
      }
    }
    if (i.kind == Kind::call && i.op->view == nullptr && i.op->workspace != nullptr &&
        !places.contains(place)) {
      std::vector<Tensor> in;
      std::vector<Tensor> out;
      for (const int number : i.in) {
        in.push_back(number < 0 ? Tensor() : shadow.tensors[index(number)]);
      }
      for (const int number : i.out) {
        out.push_back(number < 0 ? Tensor() : shadow.tensors[index(number)]);
      }
      if (i.op->in_place) {
        out.push_back(in[0]);
      }
      const bool complete = std::ranges::all_of(out, [](const Tensor& x) { return x.defined(); });
      const auto bytes =
          static_cast<std::int64_t>(complete ? i.op->workspace({*i.op, in, i.attributes}, out) : 0);
      if (bytes > 0) {
        block.workspace_bytes[index(place)] = bytes;
        workspaces.emplace_back(pieces.size(), place);
        pieces.push_back({bytes, place, place});
      }
    }
  });
  for (const Chain& chain : chains) {
    if (const std::int64_t bytes = chain.workspace(); bytes > 0) {
      block.workspace_bytes[index(chain.last())] = bytes;
      workspaces.emplace_back(pieces.size(), chain.last());
      pieces.push_back({bytes, chain.last(), chain.last()});
    }
  }
  const MemoryPlan plan = plan_memory(pieces);
  for (std::size_t m = 0; m < count; ++m) {
    if (piece_of[m] != none) {
      block.offsets[m] = plan.offsets[piece_of[m]];
      block.for_peers = block.for_peers || shadow.memories[m].for_peers;
    }
  }
  for (const auto& [piece, place] : workspaces) {
    block.workspaces[index(place)] = plan.offsets[piece];
  }
  block.bytes = plan.bytes;
  block.least = plan.least;
  std::vector<MemoryPiece> outside;
  for (std::size_t m = 0; m < count; ++m) {
    const Memory& memory = shadow.memories[m];
    if (block.offsets[m] < 0 && !memory.is_input && !memory.inside && !memory.elsewhere) {
      outside.push_back({memory.bytes, memory.first, memory.last});
    }
  }
  block.outside = plan_memory(outside).least;
  return block;
}

}  // namespace tessera::graph
