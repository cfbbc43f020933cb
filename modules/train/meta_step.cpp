// Steps that are captured on the meta device before the first one.
module;
#include <cstddef>
#include <functional>
#include <string>
#include <tessera/limits.hpp>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.capture;

namespace tessera {

Tensors MetaReads::call(const Call& call, NextCall& next) { return calls_.call(call, next); }

void MetaReads::perform(Action& action, NextAction& next) {
  if (action.kind != ActionKind::read || !action.in[0].is_meta()) {
    next(action);
    return;
  }
  if (action.name == "data") {
    fail({.thing = "step on the meta device",
          .wrong = "the host takes the address of values (data<T>()), and there are none",
          .advice = "write by operators, and read by to_doubles() or item()"});
  }
  const GuardRead* const guard = current_guard();
  action.values.assign(static_cast<std::size_t>(action.in[0].numel()),
                       guard == nullptr ? 1 : guard->usual);
}

void as_rank(int rank, const std::function<void()>& body) {
  in_own_thread("a step without values", [&] {
    set_current_rank(rank);
    body();
  });
}

void on_meta(int rank, const std::function<void()>& body) {
  const int threads = ops::threads();
  as_rank(rank, [&] {
    ops::set_threads(threads);
    MetaReads reads;
    const ModeScope scope(ModeLevel::below_distribution, reads);
    const PlannedMemoryScope planned;  // memory without bytes has categories in a program
    body();
  });
}

std::string reads_values(const Program& program) {
  PlaceIndex place(0);
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      if (i.kind == Instruction::Kind::check && !i.is_guard()) {
        return graph::place_in_words(program, place);
      }
      ++place;
    }
  }
  return "";
}

}  // namespace tessera
