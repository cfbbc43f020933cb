// Changes of what steps compute, with faults that a run must find.
#include <string>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.passes;

namespace {

using namespace tessera;

/// The second rank sums its loss over all ranks once more.
void reduce_on_one_rank(graph::Editor& edit) {
  if (edit.program().rank == 1) {
    edit.move_to(edit.program().sections.size() - 1, 0);
    edit.value("all_reduce", {edit.program().outputs.at("loss")}, "op=sum, group=ranks 0 1");
  }
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Change>("reduces_on_one_rank", [] {
    return graph::Change{
        .name = "reduces_on_one_rank", .about = "Wrong.", .run = reduce_on_one_rank};
  });
}
