import tessera.plugin;
import tessera.graph;

namespace {

using namespace tessera;

void run(graph::Editor& /*edit*/) {}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Transform>("MeanLoss", [] {
    return graph::Transform{.name = "MeanLoss", .about = "Keeps a mean of the loss.", .run = run};
  });
}
