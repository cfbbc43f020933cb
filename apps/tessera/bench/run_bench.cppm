export module tessera.app.bench:run_bench;

import tessera.app.base;

export namespace tessera::app {

/// `tessera bench`.
struct BenchArguments {
  std::string what;  // gemm, kernels, dispatch, collectives, step or checkpoint; empty: all
  bool json = false;
  int elements = 1 << 24;  // of a kernel's operand: 64 MiB, more than caches hold
  std::string only;        // kernels with this in their name
};
int run_bench(const BenchArguments& arguments);

}  // namespace tessera::app
