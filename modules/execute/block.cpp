// Which memories of a program are in one block, and where.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
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
/// in-place form of the operator would, if there is one.
MemoryIndex taken_over(const Instruction& i, PlaceIndex place, const Shadow& shadow) {
  if (i.kind != Kind::call || i.in.empty() || i.out.size() != 1 || !i.in[0].exists() ||
      !i.out[0].exists() || !with_in_place_form().contains(i.op)) {
    return {};
  }
  const MemoryIndex from = shadow.memory(i.in[0]);
  const MemoryIndex to = shadow.memory(i.out[0]);
  const Memory& old = shadow.memories[from];
  const Memory& made = shadow.memories[to];
  const Tensor& operand = shadow.at(i.in[0]);
  const Tensor& result = shadow.at(i.out[0]);
  const auto shared = std::ranges::count_if(
      i.in, [&](TensorIndex number) { return shadow.memory(number) == from; });
  const bool fits = from != to && shared == 1 && old.last == place && made.first == place &&
                    old.bytes == made.bytes && operand.is_contiguous() && operand.offset() == 0 &&
                    operand.shape() == result.shape() && operand.dtype() == result.dtype();
  return fits ? from : MemoryIndex();
}

/// The bytes that the device's kernel of a call needs besides its operands.
std::int64_t workspace_of(const Instruction& i, const Shadow& shadow, DeviceType device) {
  if (i.kind != Kind::call || i.op->view != nullptr) {
    return 0;
  }
  const DeviceKernel kernel = kernel_of(*i.op, device);
  if (kernel.workspace == nullptr) {
    return 0;
  }
  const std::vector<Tensor> in = shadow.at(i.in);
  std::vector<Tensor> out = shadow.at(i.out);
  if (i.op->in_place) {
    out.push_back(in[0]);
  }
  const bool complete = std::ranges::all_of(out, [](const Tensor& x) { return x.defined(); });
  return complete ? static_cast<std::int64_t>(kernel.workspace({*i.op, in, i.attributes}, out)) : 0;
}

/// Finds the pieces of the block, one after the other, and then their places.
class BlockMaker {
 public:
  BlockMaker(const Program& program, const Shadow& shadow, DeviceType device,
             std::span<const Chain> chains)
      : program_(program),
        shadow_(shadow),
        device_(device),
        chains_(chains),
        fixed_(shadow.memories.size()),
        piece_of_(shadow.memories.size(), none),
        in_chains_(places_in_chains(chains, shadow)) {
    block_.offsets = ByMemory<std::int64_t>(shadow.memories.size(), -1);
    block_.workspaces = ByPlace<std::int64_t>(shadow.partners.size(), -1);
    block_.workspace_bytes = ByPlace<std::int64_t>(shadow.partners.size(), 0);
    for (const Chain& chain : chains) {
      for (const Chain::ChainCall& call : chain.calls) {
        made_by_chains_.insert(call.place);
      }
    }
  }

  Block operator()() {
    find_fixed();
    each([&](const Instruction& i, PlaceIndex place) {
      add_results(i, place);
      if (!made_by_chains_.contains(place)) {
        add_workspace(place, workspace_of(i, shadow_, device_));
      }
    });
    for (const Chain& chain : chains_) {
      add_workspace(chain.last(), chain.workspace());
    }
    place_pieces();
    block_.outside = most_outside();
    return std::move(block_);
  }

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  template <class Body>
  void each(const Body& body) {
    PlaceIndex place(0);
    for (const Instruction* const i : places_of(program_)) {
      body(*i, place);
      ++place;
    }
  }

  /// Memories that the program makes and nobody needs elsewhere or later.
  void find_fixed() {
    for (const MemoryIndex m : fixed_.keys()) {
      const Memory& memory = shadow_.memories[m];
      fixed_[m] = !memory.is_input && !memory.read_later && !memory.inside && !memory.elsewhere;
    }
    each([&](const Instruction& i, PlaceIndex) {
      for (const TensorIndex number : i.out) {
        if (number.exists() && is_called(i, shadow_)) {
          fixed_[shadow_.memory(number)] = false;
        }
      }
    });
  }

  /// A result that takes over an operand's memory has its piece.
  void add_results(const Instruction& i, PlaceIndex place) {
    const MemoryIndex taken = taken_over(i, place, shadow_);
    for (const TensorIndex number : i.out) {
      const MemoryIndex memory = shadow_.memory(number);
      if (!memory.exists() || !fixed_[memory] || piece_of_[memory] != none) {
        continue;
      }
      const Memory& made = shadow_.memories[memory];
      const MemoryIndex from = in_chains_[memory].value_or(taken);
      if (from.exists() && fixed_[from] && piece_of_[from] != none) {
        piece_of_[memory] = piece_of_[from];
        pieces_[piece_of_[from]].last = made.last;
      } else {
        piece_of_[memory] = pieces_.size();
        pieces_.push_back({made.bytes, made.first, made.last});
      }
    }
  }

  void add_workspace(PlaceIndex place, std::int64_t bytes) {
    if (bytes > 0) {
      block_.workspace_bytes[place] = bytes;
      workspaces_.emplace_back(pieces_.size(), place);
      pieces_.push_back({bytes, place, place});
    }
  }

  void place_pieces() {
    const MemoryPlan plan = plan_memory(pieces_);
    for (const MemoryIndex m : piece_of_.keys()) {
      if (piece_of_[m] != none) {
        block_.offsets[m] = plan.offsets[piece_of_[m]];
        block_.for_peers = block_.for_peers || shadow_.memories[m].for_peers;
      }
    }
    for (const auto& [piece, place] : workspaces_) {
      block_.workspaces[place] = plan.offsets[piece];
    }
    block_.bytes = plan.bytes;
    block_.least = plan.least;
  }

  std::int64_t most_outside() const {
    std::vector<MemoryPiece> outside;
    for (const MemoryIndex m : shadow_.memories.keys()) {
      const Memory& memory = shadow_.memories[m];
      if (block_.offsets[m] < 0 && !memory.is_input && !memory.inside && !memory.elsewhere) {
        outside.push_back({memory.bytes, memory.first, memory.last});
      }
    }
    return plan_memory(outside).least;
  }

  const Program& program_;
  const Shadow& shadow_;
  DeviceType device_;
  std::span<const Chain> chains_;
  Block block_;
  ByMemory<bool> fixed_;  // it has a piece of the block
  ByMemory<std::size_t> piece_of_;
  std::vector<MemoryPiece> pieces_;
  ByMemory<std::optional<MemoryIndex>> in_chains_;
  std::set<PlaceIndex> made_by_chains_;
  std::vector<std::pair<std::size_t, PlaceIndex>> workspaces_;  // piece and place
};

}  // namespace

bool is_copy(const Instruction& i, const Shadow& shadow) {
  return i.kind == Kind::call && i.op->view != nullptr && i.out[0].exists() &&
         shadow.memory(i.out[0]) != shadow.memory(i.in[0]);
}

bool is_called(const Instruction& i, const Shadow& shadow) {
  // Their copies have the operand's elements in row-major order.
  static const std::set<std::string_view> keep_order = {"contiguous", "reshape"};
  const bool unused = std::ranges::find(i.out, TensorIndex()) != i.out.end();
  return i.kind == Kind::call &&
         (unused || (is_copy(i, shadow) && !keep_order.contains(i.op->name)));
}

Block block_of(const Program& program, const Shadow& shadow, DeviceType device,
               std::span<const Chain> chains) {
  return BlockMaker(program, shadow, device, chains)();
}

}  // namespace tessera::graph
