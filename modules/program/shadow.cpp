module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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
    shadow_.memory_of.assign(program.tensors.size(), MemoryIndex());
  }

  Shadow build() {
    const NoGrad no_grad;
    for (const auto& [name, input] : program_.inputs) {
      try {
        define(input.number, made(input.number));
      } catch (const Error& error) {
        fail({.thing = "program", .wrong = fmt::format("input '{}': {}", name, error.what())});
      }
      memory(input.number).is_input = true;
    }
    for (const Section& section : program_.sections) {
      for (const Instruction& instruction : section.instructions) {
        shadow_.partners.push_back(-1);
        try {
          execute(instruction);
        } catch (const Error& error) {
          fail({.thing = "program",
                .wrong =
                    fmt::format("{}: {}", place_in_words(program_, shadow_.places), error.what())});
        }
        ++shadow_.places;
      }
    }
    for (const auto& [name, number] : program_.outputs) {
      memory(number).is_output = true;
      memory(number).last = shadow_.places;
    }
    for (const auto& [group, reads] : read_) {
      for (const Read& read : reads) {
        shadow_.memories[read.memory].read_later = true;
      }
    }
    const std::vector<bool> for_peers = read_by_peers(program_);
    for (std::size_t n = 0; n < for_peers.size(); ++n) {
      if (for_peers[n] && shadow_.memory_of[n].exists()) {
        memory(static_cast<int>(n)).for_peers = true;
      }
    }
    return std::move(shadow_);
  }

 private:
  Tensor made(int number) const {
    const ProgramTensor& x = program_.tensors[index(number)];
    return empty(x.shape, x.dtype, meta);
  }

  const Tensor& at(int number) const { return shadow_.tensors[index(number)]; }

  Memory& memory(int number) {
    const MemoryIndex found = shadow_.memory(number);
    require(found.exists(), "graph: a tensor of the program is used before it is defined");
    return shadow_.memories[found];
  }

  void define(int number, const Tensor& x) {
    const auto [found, fresh] = numbers_.try_emplace(&x.storage());
    if (fresh) {
      found->second =
          shadow_.memories.add({.bytes = x.numel() * static_cast<std::int64_t>(size_of(x.dtype())),
                                .first = shadow_.places,
                                .last = shadow_.places});
    }
    shadow_.memory_of[index(number)] = found->second;
    shadow_.tensors[index(number)] = x;
  }

  void use(int number) {
    if (number >= 0) {
      memory(number).last = shadow_.places;
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
    std::vector<Tensor> operands;
    for (const int number : i.in) {
      use(number);
      operands.push_back(number < 0 ? Tensor() : at(number));
    }
    if (i.kind == Kind::alias) {
      const Tensor& base = operands[0];
      const ProgramTensor& x = program_.tensors[index(i.out[0])];
      check_bounds(i, base, x);
      define(i.out[0], aliased(i, x, base));
    } else if (i.kind == Kind::call) {
      const Tensors out = call_kernel(*i.op, operands, i.attributes);
      for (std::size_t k = 0; k < i.out.size(); ++k) {
        if (i.out[k] >= 0) {
          define(i.out[k], out[k]);
        }
      }
      keep_until_complete(i);
    } else {
      for (const int number : i.out) {
        define(number, made(number));
        memory(number).elsewhere = program_.tensors[index(number)].elsewhere;
      }
    }
  }

  void use_all(const Instruction& i) {
    for (const std::vector<int>* numbers : {&i.in, &i.out}) {
      for (const int number : *numbers) {
        use(number);
      }
    }
  }

  /// Operands of a call that is complete here, while other ranks may still read them.
  void keep_until_read(const Instruction& i) {
    std::vector<Read>& all = read_[group_of(i)];
    for (const int number : operands_left_to_readers(i)) {
      all.push_back({shadow_.memory_of[index(number)], shadow_.places});
    }
  }

  /// Here the calls of the group that were complete before `place` have been completed by all of
  /// its ranks: each completes its calls in their order.
  void release_read(const CallGroup* group, int place) {
    std::erase_if(read_[group], [&](const Read& read) {
      Memory& memory = shadow_.memories[read.memory];
      memory.last = read.complete < place ? std::max(memory.last, shadow_.places) : memory.last;
      return read.complete < place;
    });
  }

  /// Keeps what a collective reads and writes until it is complete.
  void keep_until_complete(const Instruction& i) {
    if (i.op->communicates == Communicates::waits && !i.op->completes) {  // for the readers
      release_read(group_of(i), shadow_.places);
    } else if (i.op->issues) {
      const int key = !i.out.empty() ? i.out[0] : i.in[0];
      in_flight_[shadow_.memory_of[index(key)]] = {shadow_.places, &i};
    } else if (i.op->completes) {
      const auto pending = in_flight_.find(shadow_.memory_of[index(i.in[0])]);
      if (pending == in_flight_.end()) {
        fail("no collective was issued for it");
      }
      const auto [place, issue] = pending->second;
      use_all(*issue);
      release_read(group_of(*issue), place);
      keep_until_read(*issue);
      shadow_.partners[index(place)] = shadow_.places;
      shadow_.partners[index(shadow_.places)] = place;
      in_flight_.erase(pending);
    }
  }

  struct Read {
    MemoryIndex memory;
    int complete = 0;  // the place at which this rank has completed the call
  };

  const Program& program_;
  Shadow shadow_;
  std::map<const Storage*, MemoryIndex> numbers_;
  std::map<const CallGroup*, std::vector<Read>> read_;  // what others may still read
  /// Issued calls, with their places, by the memory that wait() names.
  std::map<MemoryIndex, std::pair<int, const Instruction*>> in_flight_;
};

}  // namespace

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

std::vector<int> operands_left_to_readers(const Instruction& instruction) {
  std::vector<int> left;
  const Op& op = *instruction.op;
  const std::size_t count = instruction.in.size();
  for (std::size_t k = 0; k < count && op.in_place && !is_alone(instruction); ++k) {
    if (instruction.in[k] >= 0 && !op.writes(op.place_of(k, count).operand)) {
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
