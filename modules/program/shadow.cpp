module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :accesses;
import :shadow;
import :statistics;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Builder {
 public:
  explicit Builder(const Program& program) : program_(program) {
    shadow_.tensors.resize(program.tensors.size());
    shadow_.memory_of.resize(program.tensors.size());
  }

  Shadow build() {
    const NoGrad no_grad;
    for (const auto& [name, input] : program_.inputs) {
      try {
        define(input.tensor, made(input.tensor));
      } catch (const Error& error) {
        fail({.thing = "program", .wrong = fmt::format("input '{}': {}", name, error.what())});
      }
      memory(input.tensor).is_input = true;
    }
    for (const Section& section : program_.sections) {
      for (const Instruction& instruction : section.instructions) {
        shadow_.partners.add({});
        try {
          execute(instruction);
        } catch (const Error& error) {
          fail({.thing = "program",
                .wrong = fmt::format("{}: {}", place_in_words(program_, place_), error.what())});
        }
        ++place_;
      }
    }
    for (const auto& [name, number] : program_.outputs) {
      memory(number).is_output = true;
      memory(number).last = place_;
    }
    for (const auto& [group, reads] : read_) {
      for (const PendingRead& read : reads) {
        shadow_.memories[read.memory].read_later = true;
      }
    }
    const ByTensor<bool> for_peers = read_by_peers(program_);
    for (const TensorIndex number : for_peers.keys()) {
      if (for_peers[number] && shadow_.memory(number).exists()) {
        memory(number).for_peers = true;
      }
    }
    return std::move(shadow_);
  }

 private:
  Tensor made(TensorIndex number) const {
    const ProgramTensor& x = program_.tensors[number];
    return empty(x.shape, x.dtype, meta);
  }

  Memory& memory(TensorIndex number) {
    const MemoryIndex found = shadow_.memory(number);
    require(found.exists(), "graph: a tensor of the program is used before it is defined");
    return shadow_.memories[found];
  }

  void define(TensorIndex number, const Tensor& x) {
    const auto [found, fresh] = numbers_.try_emplace(&x.storage());
    if (fresh) {
      found->second =
          shadow_.memories.add({.bytes = x.numel() * static_cast<std::int64_t>(size_of(x.dtype())),
                                .first = place_,
                                .last = place_});
    }
    shadow_.memory_of[number] = found->second;
    shadow_.tensors[number] = x;
  }

  void use(TensorIndex number) {
    if (number.exists()) {
      memory(number).last = place_;
    }
  }

  /// Error: a view goes beyond its memory.
  void check_bounds(const Instruction& i, const Tensor& base, const ResultShape& x) {
    const auto size = static_cast<std::int64_t>(size_of(x.dtype));
    const std::int64_t begin = base.offset() * static_cast<std::int64_t>(size_of(base.dtype()));
    require(i.strides.size() == x.shape.size(), "graph: an alias needs a stride for each dim");
    if (checked_product(x.shape, "an alias") == 0) {
      return;
    }
    // Texts may say anything; 128 bits hold the sum of all dims.
    const auto first = begin + static_cast<__int128>(i.offset) * size;
    __int128 last = 0;
    require(std::ranges::none_of(i.strides, [](std::int64_t stride) { return stride < 0; }),
            "graph: a stride of an alias is negative");
    for (int dim = 0; dim < static_cast<int>(x.shape.size()); ++dim) {
      last += static_cast<__int128>(x.shape[dim] - 1) * i.strides[dim];
    }
    const std::int64_t bytes = memory(i.in[0]).bytes;
    if (begin % size != 0 || first < 0 || first + (last + 1) * size > bytes) {
      fail(fmt::format("it goes beyond its memory of {} bytes", bytes));
    }
  }

  void execute(const Instruction& i) {
    for (const TensorIndex number : i.in) {
      use(number);
    }
    const std::vector<Tensor> operands = shadow_.at(i.in);
    if (i.kind == Kind::alias) {
      const Tensor& base = operands[0];
      const ProgramTensor& x = program_.tensors[i.out[0]];
      check_bounds(i, base, x);
      define(i.out[0], aliased(i, x, base));
    } else if (i.kind == Kind::call) {
      const Tensors out = has_no_operands(operands)
                              ? results_without_operands({*i.op, operands, i.attributes})
                              : call_kernel(*i.op, operands, i.attributes);
      for (std::size_t k = 0; k < i.out.size(); ++k) {
        if (i.out[k].exists()) {
          define(i.out[k], out[k]);
        }
      }
      keep_until_complete(i);
    } else {
      for (const TensorIndex number : i.out) {
        define(number, made(number));
        memory(number).elsewhere = program_.tensors[number].elsewhere;
      }
    }
  }

  void use_all(const Instruction& i) {
    for (const std::vector<TensorIndex>* numbers : {&i.in, &i.out}) {
      for (const TensorIndex number : *numbers) {
        use(number);
      }
    }
  }

  /// Operands of a call that is complete here, while other ranks may still read them.
  void keep_until_read(const Instruction& i) {
    std::vector<PendingRead>& all = read_[group_of(i)];
    for (const TensorIndex number : operands_left_to_readers(i)) {
      all.push_back({shadow_.memory(number), place_});
    }
  }

  /// Here the calls of the group that were complete before `place` have been completed by all of
  /// its ranks: each completes its calls in their order.
  void release_read(const CallGroup* group, PlaceIndex place) {
    std::erase_if(read_[group], [&](const PendingRead& read) {
      Memory& memory = shadow_.memories[read.memory];
      memory.last = read.complete < place ? std::max(memory.last, place_) : memory.last;
      return read.complete < place;
    });
  }

  /// Keeps what a collective reads and writes until it is complete.
  void keep_until_complete(const Instruction& i) {
    if (i.op->communicates == Communicates::waits && !i.op->completes) {  // for the readers
      release_read(group_of(i), place_);
    } else if (i.op->issues) {
      in_flight_[shadow_.memory(!i.out.empty() ? i.out[0] : i.in[0])] = {place_, &i};
    } else if (i.op->completes) {
      const auto pending = in_flight_.find(shadow_.memory(i.in[0]));
      if (pending == in_flight_.end()) {
        fail("no collective was issued for it");
      }
      const auto [place, issue] = pending->second;
      use_all(*issue);
      release_read(group_of(*issue), place);
      keep_until_read(*issue);
      shadow_.partners[place] = place_;
      shadow_.partners[place_] = place;
      in_flight_.erase(pending);
    }
  }

  struct PendingRead {
    MemoryIndex memory;
    PlaceIndex complete;  // at which this rank has completed the call
  };

  const Program& program_;
  Shadow shadow_;
  PlaceIndex place_ = PlaceIndex(0);
  std::map<const Storage*, MemoryIndex> numbers_;
  std::map<const CallGroup*, std::vector<PendingRead>> read_;  // what others may still read
  /// Issued calls, with their places, by the memory that wait() names.
  std::map<MemoryIndex, std::pair<PlaceIndex, const Instruction*>> in_flight_;
};

}  // namespace

bool has_no_operands(std::span<const Tensor> operands) {
  return std::ranges::none_of(operands, [](const Tensor& x) { return static_cast<bool>(x); });
}

Tensors results_without_operands(const Call& call) {
  ResultShapes shapes;
  call.op.infer(call, shapes);
  Tensors out;
  for (const ResultShape& result : shapes) {
    out.push_back(empty(result.shape, result.dtype, meta));
  }
  return out;
}

void require_lowered(const Program& program) {
  if (program.level == ModeLevel::above_distribution) {
    fail({.thing = "program",
          .wrong = "it is above distribution, where memory and communication are not decided",
          .expected = "the program of a rank",
          .advice = "lower() it first"});
  }
}

Shadow shadow_of(const Program& program) {
  require_lowered(program);
  return Builder(program).build();
}

std::vector<Tensor> Shadow::at(std::span<const TensorIndex> some) const {
  std::vector<Tensor> all;
  for (const TensorIndex tensor : some) {
    all.push_back(tensor.exists() ? at(tensor) : Tensor());
  }
  return all;
}

bool Shadow::is_all_of_memory(TensorIndex tensor) const {
  const Tensor& x = at(tensor);
  return x.is_contiguous() && x.offset() == 0 &&
         x.numel() * static_cast<std::int64_t>(size_of(x.dtype())) ==
             memories[memory(tensor)].bytes;
}

std::vector<TensorIndex> operands_left_to_readers(const Instruction& instruction) {
  std::vector<TensorIndex> left;
  const bool is_read = instruction.op->in_place && !is_alone(instruction);
  for (std::size_t k = 0; k < instruction.in.size() && is_read; ++k) {
    if (instruction.in[k].exists() && !instruction.writes(k)) {
      left.push_back(instruction.in[k]);
    }
  }
  return left;
}

bool is_alone(const Instruction& instruction) {
  const CallGroup* const group = group_of(instruction);
  return group == nullptr || group->is_alone();
}

const CallGroup* group_of(const Instruction& instruction) {
  const ArgumentsInfo* const info = instruction.op->arguments;
  return info == nullptr || info->group == nullptr ? nullptr : info->group(instruction.attributes);
}

}  // namespace tessera::graph
