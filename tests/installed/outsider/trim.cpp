// A change that keeps bits: it removes views that nothing uses.
#include <set>
#include <string>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.program;
import tessera.passes;

namespace {

using namespace tessera;

void run(graph::Editor& edit) {
  Program& program = edit.program();
  std::set<TensorIndex> used;
  for (const auto& [name, number] : program.outputs) {
    used.insert(number);
  }
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      used.insert(i.in.begin(), i.in.end());
    }
  }
  for (Section& section : program.sections) {
    std::erase_if(section.instructions, [&](const Instruction& i) {
      return i.kind == Instruction::Kind::alias && !used.contains(i.out[0]);
    });
  }
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Change>("Trim", [] {
    return graph::Change{.name = "Trim",
                         .about = "Removes views that nothing uses.",
                         .facts = {.keeps_bits = true},
                         .run = run};
  });
}
