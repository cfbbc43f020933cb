import tessera.app.commands;
import tessera.app.bench;
import tessera.app.tools;

int main(int argc, char** argv) {
  using namespace tessera::app;
  constexpr Tools tools{.plan = run_plan,
                        .bench = run_bench,
                        .bench_compare = run_bench_compare,
                        .roofline = run_graph_roofline,
                        .check_plugin = check_plugin};
  return run_program(argc, argv, &tools);
}
