// Views of views become views of the memory's first tensor; equal views become one.
module;
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :renumbering;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Views {
 public:
  Views(Program& program, const Analysis& known)
      : program_(program),
        shadow_(known.state().shadow),
        accesses_(known.state().accesses),
        first_(shadow_.memories.size()),
        replacement_(program) {}

  void simplify() {
    for (const auto& [name, input] : program_.inputs) {
      define(input.tensor);
    }
    PlaceIndex place(0);
    for (Section& section : program_.sections) {
      for (Instruction& i : section.instructions) {
        look_at(i, place);
        ++place;
      }
    }
    replacement_.apply(program_);
  }

 private:
  MemoryIndex memory(TensorIndex number) const { return shadow_.memory(number); }

  /// Whether an earlier tensor is the same view; then that one takes its place.
  bool define(TensorIndex number) {
    TensorIndex& first = first_[memory(number)];
    first = first.exists() ? first : number;
    const auto [same, is_new] =
        known_.try_emplace({memory(number), view_in_words(shadow_.at(number))}, number);
    replacement_.replace(number, same->second);
    return !is_new;
  }

  /// An instruction is not needed where its results are known.
  void look_at(Instruction& i, PlaceIndex place) {
    const bool is_view =
        (i.kind == Kind::alias || (i.kind == Kind::call && i.op->view != nullptr)) &&
        accesses_[place].writes.empty();
    bool all = is_view;
    for (const TensorIndex number : i.out) {
      if (number.exists() && !define(number)) {
        all = false;
      }
    }
    if (all) {
      replacement_.remove(place);
    } else if (is_view) {
      rebase(i);
    }
  }

  void rebase(Instruction& i) {
    const TensorIndex first = first_[memory(i.in[0])];
    if (i.out.size() != 1 || replacement_.instead_of(i.in[0]) == first) {
      return;
    }
    const Tensor& x = shadow_.at(i.out[0]);
    const Tensor& base = shadow_.at(first);
    const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
    const std::int64_t begin = base.offset() * static_cast<std::int64_t>(size_of(base.dtype()));
    i = {.kind = Kind::alias,
         .in = {first},
         .out = i.out,
         .strides = x.strides(),
         .offset = x.offset() - begin / size,
         .scope = i.scope};
  }

  Program& program_;
  const Shadow& shadow_;
  const ByPlace<Access>& accesses_;
  ByMemory<TensorIndex> first_;
  Replacement replacement_;
  std::map<std::pair<MemoryIndex, std::string>, TensorIndex> known_;
};

}  // namespace

void simplify_views(Program& program, const Analysis& known) { Views(program, known).simplify(); }

}  // namespace tessera::graph
