export module tessera.app.bench:run_bench;

import tessera.app.base;

export namespace tessera::app {

/// `tessera bench`.
struct BenchArguments {
  std::string what;  // gemm, kernels, device, dispatch, collectives, step, checkpoint, scale,
                     // tokenizer or generate; empty: all
  bool json = false;
  int elements = 1 << 24;      // of a kernel's operand: 64 MiB, more than caches hold
  int ranks = 1024;            // of bench scale, at most
  std::string only;            // kernels with this in their name
  std::string device = "cpu";  // of bench device
  std::string tokenizer;       // a folder or file; empty: "bytes"
  std::string model;           // a checkpoint or folder; empty: a Llama with random weights
};
int run_bench(const BenchArguments& arguments);

}  // namespace tessera::app
