export module tessera.execute:compiled_chains;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.program;
import :chains;
import :planned_executor;

export namespace tessera::graph {

/// The chains of a program, compiled for a device. Errors: see generated_library, compile_loops.
class CompiledChains {
 public:
  explicit CompiledChains(const Program& program, Device device = cpu);

  std::span<const Chain> chains() const { return {chains_.begin(), chains_.end()}; }
  /// Where nothing could be compiled, there are no chains.
  CompiledKernels summary() const;
  /// The chain that the instruction at this place belongs to; none: to no chain.
  ChainIndex at(PlaceIndex place) const { return at_[place]; }
  const Chain& chain(ChainIndex chain) const { return chains_[chain]; }

  using Bound = std::function<Attributes(const Instruction&)>;
  /// Computes a chain. `in`, `out`: its inputs and outputs in their order, on the device.
  /// `workspace`: Chain::workspace() bytes.
  void run(ChainIndex chain, std::span<const Tensor> in, std::span<Tensor> out,
           std::span<std::byte> workspace, const Bound& bound);

 private:
  /// Needs of a chain's call, so that a step allocates nothing for it.
  struct ReadyCall {
    std::size_t number = 0;  // of its function, or of its loop
    ChainFunction function = nullptr;
    ChainEnd end = nullptr;  // of a chain with sums
    std::vector<double> numbers = {};
    /// Calls whose numbers follow variables, and where these are in `numbers`.
    std::vector<std::pair<std::size_t, const Instruction*>> bound = {};
    std::vector<const void*> from = {};
    std::vector<void*> to = {};
    std::vector<const void*> sums = {};  // those of blocks, where a chain has sums
    std::vector<void*> ends = {};
  };

  /// False: nothing could be compiled.
  bool compile_for_host(const Program& program);
  bool compile_for_device(const Program& program, Device device);
  void run_on_host(const Chain& chain, ReadyCall& ready, std::span<const Tensor> in,
                   std::span<Tensor> out, std::span<std::byte> workspace);

  ByChain<Chain> chains_;
  ByPlace<ChainIndex> at_;
  std::string missing_;
  std::shared_ptr<const plugin::FunctionLibrary> library_;
  std::unique_ptr<DeviceLoops> loops_;  // null: of the CPU
  ByChain<ReadyCall> ready_;
};

}  // namespace tessera::graph
