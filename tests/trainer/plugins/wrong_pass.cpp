// Passes with faults that `tessera plugin check` must find.
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.program;
import tessera.passes;

namespace {

using namespace tessera;

void remove_if(Program& program, const std::function<bool(const Instruction& i)>& is_removed) {
  for (Section& section : program.sections) {
    std::erase_if(section.instructions, is_removed);
  }
}

/// Removes what writes into memory.
void remove_writes(Program& program, const graph::Analysis& /*known*/) {
  remove_if(program, [](const Instruction& i) { return i.op != nullptr && i.op->in_place; });
}

/// Its tensors have other numbers on the second rank.
void depend_on_rank(Program& program, const graph::Analysis& /*known*/) {
  if (program.rank == 1) {
    program.sections[0].instructions.push_back(
        {.kind = Instruction::Kind::full,
         .out = {program.tensors.add(program.tensors[TensorIndex(0)])},
         .values = {1}});
  }
}

/// Keeps what was gathered on the second rank only.
void gather_less_on_one_rank(Program& program, const graph::Analysis& known) {
  if (program.rank == 1) {
    graph::find_pass("keep_gathers").run(program, known);
  }
}

void do_nothing(Program& /*program*/, const graph::Analysis& /*known*/) {}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Pass>("removes_writes", [] {
    return graph::Pass{.name = "removes_writes", .about = "Wrong.", .run = remove_writes};
  });
  registrar.add<graph::Pass>("depends_on_rank", [] {
    return graph::Pass{.name = "depends_on_rank", .about = "Wrong.", .run = depend_on_rank};
  });
  registrar.add<graph::Pass>("misnamed", [] {
    return graph::Pass{.name = "another", .about = "Wrong.", .run = do_nothing};
  });
  registrar.add<graph::Pass>("gathers_less_on_one_rank", [] {
    return graph::Pass{
        .name = "gathers_less_on_one_rank", .about = "Wrong.", .run = gather_less_on_one_rank};
  });
  registrar.add<graph::Pass>("idle", [] { return graph::Pass{.name = "idle", .run = do_nothing}; });
}
