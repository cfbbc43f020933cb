// Views of views become views of the memory's first tensor; equal views become one.
module;
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Views {
 public:
  Views(Program& program, const Analysis& known)
      : program_(program),
        shadow_(known.state().shadow),
        accesses_(known.state().accesses),
        first_(shadow_.memories.size(), -1),
        number_of_(program.tensors.size()) {
    std::iota(number_of_.begin(), number_of_.end(), 0);
  }

  void simplify() {
    for (const auto& [name, input] : program_.inputs) {
      define(input.number);
    }
    std::size_t place = 0;
    for (Section& section : program_.sections) {
      std::erase_if(section.instructions,
                    [&](Instruction& i) { return is_known(i, accesses_[place++]); });
    }
    for (auto& [name, number] : program_.outputs) {
      number = number_of_[index(number)];
    }
  }

 private:
  const Tensor& at(int number) const { return shadow_.tensors[index(number)]; }
  MemoryIndex memory(int number) const { return shadow_.memory(number); }

  /// Whether an earlier tensor is the same view; then that one takes its place.
  bool define(int number) {
    int& first = first_[memory(number)];
    first = first < 0 ? number : first;
    const auto [same, is_new] =
        known_.try_emplace({memory(number), view_in_words(at(number))}, number);
    number_of_[index(number)] = same->second;
    return !is_new;
  }

  /// Whether the instruction is not needed, as its results are known.
  bool is_known(Instruction& i, const Access& access) {
    renumber(i, number_of_);
    const bool is_view =
        (i.kind == Kind::alias || (i.kind == Kind::call && i.op->view != nullptr)) &&
        access.writes.empty();
    bool all = is_view;
    for (const int number : i.out) {
      if (number >= 0 && !define(number)) {
        all = false;
      }
    }
    if (is_view && !all) {
      rebase(i);
    }
    return all;
  }

  void rebase(Instruction& i) {
    const int first = first_[memory(i.in[0])];
    if (i.out.size() != 1 || i.in[0] == first) {
      return;
    }
    const Tensor& x = at(i.out[0]);
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    const std::int64_t begin =
        at(first).offset() * static_cast<std::int64_t>(size_of(at(first).dtype()));
    i = {.kind = Kind::alias,
         .in = {first},
         .out = i.out,
         .strides = x.strides(),
         .offset = x.offset() - begin / size,
         .scope = i.scope};
  }

  Program& program_;
  const Shadow& shadow_;
  const std::vector<Access>& accesses_;
  ByMemory<int> first_;
  std::vector<int> number_of_;
  std::map<std::pair<MemoryIndex, std::string>, int> known_;
};

}  // namespace

void simplify_views(Program& program, const Analysis& known) { Views(program, known).simplify(); }

}  // namespace tessera::graph
