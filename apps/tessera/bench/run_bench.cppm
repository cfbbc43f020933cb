export module tessera.app.bench:run_bench;

import tessera.app.base;
import tessera.app.commands;

export namespace tessera::app {

/// `tessera bench`: the tables on stdout, or JSON.
int run_bench(const BenchArguments& arguments);

}  // namespace tessera::app
