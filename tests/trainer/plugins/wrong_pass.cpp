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
void remove_writes(graph::Editor& edit) {
  remove_if(edit.program(), [](const Instruction& i) { return i.op != nullptr && i.op->in_place; });
}

/// Its tensors have other numbers on the second rank.
void depend_on_rank(graph::Editor& edit) {
  Program& program = edit.program();
  if (program.rank == 1) {
    program.sections[0].instructions.push_back(
        {.kind = Instruction::Kind::full,
         .out = {program.tensors.add(program.tensors[TensorIndex(0)])},
         .values = {1}});
  }
}

/// Keeps what was gathered on the second rank only.
void gather_less_on_one_rank(graph::Editor& edit) {
  if (edit.program().rank == 1) {
    graph::find_change("keep_gathers").run(edit);
  }
}

void do_nothing(graph::Editor& /*edit*/) {}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  const auto add = [&](const char* name, const graph::Change& change) {
    registrar.add<graph::Change>(name, [=] { return change; });
  };
  const auto pass = [](const char* name, void (*run)(graph::Editor&)) {
    return graph::Change{
        .name = name, .about = "Wrong.", .facts = {.keeps_bits = true}, .run = run};
  };
  add("removes_writes", pass("removes_writes", remove_writes));
  add("depends_on_rank", pass("depends_on_rank", depend_on_rank));
  add("misnamed", pass("another", do_nothing));
  add("gathers_less_on_one_rank", pass("gathers_less_on_one_rank", gather_less_on_one_rank));
  add("idle", {.name = "idle", .facts = {.keeps_bits = true}, .run = do_nothing});
}
