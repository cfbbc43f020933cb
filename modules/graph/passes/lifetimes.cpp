// Memory that is released and restored becomes a new memory for each time.
module;
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.tensor;
import tessera.record;
import :analysis;
import :analysis_state;
import :passes;
import :shadow;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Lifetimes {
 public:
  Lifetimes(Program& program, const Analysis& known)
      : program_(program),
        shadow_(known.state().shadow),
        first_(shadow_.memories.size(), -1),
        times_(shadow_.memories.size(), 0),
        number_of_(program.tensors.size()),
        time_of_(program.tensors.size(), 0) {
    std::iota(number_of_.begin(), number_of_.end(), 0);
  }

  void split() {
    for (Section& section : program_.sections) {
      for (Instruction& i : std::exchange(section.instructions, {})) {
        add(std::move(i), section.instructions);
      }
    }
  }

 private:
  std::size_t memory(int number) const {
    return static_cast<std::size_t>(shadow_.memory_of[index(number)]);
  }

  /// Inputs and outputs are the caller's: they keep their memory.
  bool is_own(int number) const {
    const Memory& one = shadow_.memories[memory(number)];
    return !one.is_input && !one.is_output;
  }

  void add(Instruction i, std::vector<Instruction>& into) {
    const bool changes = i.kind == Kind::release || i.kind == Kind::restore;
    if (changes && is_own(i.in[0])) {
      if (i.kind == Kind::restore) {
        restart(i, into);
      }
      return;
    }
    for (const int number : i.in) {
      if (number >= 0) {
        view_again(number, i.scope, into);
      }
    }
    renumber(i, number_of_);
    for (const int number : i.out) {
      if (number >= 0) {
        int& first = first_[memory(number)];
        first = first < 0 ? number : first;
        time_of_[index(number)] = times_[memory(number)];
      }
    }
    into.push_back(std::move(i));
  }

  int new_number(int like) {
    program_.tensors.push_back(program_.tensors[index(like)]);
    return static_cast<int>(program_.tensors.size()) - 1;
  }

  void restart(const Instruction& restore, std::vector<Instruction>& into) {
    const std::size_t restored = memory(restore.in[0]);
    const auto first = static_cast<std::size_t>(first_[restored]);
    number_of_[first] = new_number(first_[restored]);
    time_of_[first] = ++times_[restored];
    into.push_back({.kind = Kind::empty, .out = {number_of_[first]}, .scope = restore.scope});
  }

  /// A view that was made before the memory was restored is made again.
  void view_again(int number, int scope, std::vector<Instruction>& into) {
    const auto at = index(number);
    if (time_of_[at] == times_[memory(number)]) {
      return;
    }
    // The first tensor begins where its memory does.
    const Tensor& x = shadow_.tensors[at];
    number_of_[at] = new_number(number);
    time_of_[at] = times_[memory(number)];
    into.push_back({.kind = Kind::alias,
                    .in = {number_of_[static_cast<std::size_t>(first_[memory(number)])]},
                    .out = {number_of_[at]},
                    .strides = x.strides(),
                    .offset = x.offset(),
                    .scope = scope});
  }

  Program& program_;
  const Shadow& shadow_;
  std::vector<int> first_;      // by memory: the tensor that it was made as
  std::vector<int> times_;      // by memory: how often it was restored so far
  std::vector<int> number_of_;  // by number, at present
  std::vector<int> time_of_;    // by number: of the memory when it was last made
};

}  // namespace

void split_lifetimes(Program& program, const Analysis& known) { Lifetimes(program, known).split(); }

}  // namespace tessera::graph
