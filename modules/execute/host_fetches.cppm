module tessera.execute:host_fetches;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;

// Values that are kept in the host's memory, on their way to the device that computes with them.

namespace tessera {

/// How many instructions before its use a value is fetched: about a layer, enough work to hide it.
constexpr std::size_t fetched_ahead = 64;

/// Copies parameters of the host's memory to the device before they are used, in a stream of its
/// own: a function of the host brings a value into pinned memory, from which the device copies it.
/// So neither the device nor the host waits, unless a value is used too early.
class HostFetches {
 public:
  /// `ahead`: how many instructions before its use a value is fetched.
  HostFetches(const Program& program, std::size_t ahead);

  /// From now on values are fetched to this device.
  void begin_on(Device device);
  /// Begins what the instruction, which comes next, asks for. `on_host`: whether a parameter is in
  /// the host's memory.
  void before(ProgramPlace place, const ByTensor<Tensor>& tensors,
              const std::function<bool(const Tensor& x)>& on_host);
  /// The copy on the device, for its current stream; undefined: it was not fetched.
  Tensor taken(TensorIndex number);
  /// Waits until nothing reads the memory any more, which is about to be written. What is fetched
  /// is used before that.
  void wait_for(const Storage& memory);
  /// Waits for all.
  void end();
  /// The same after an error, without another one.
  void abandon() noexcept;

 private:
  struct HostCopy {
    Tensor copy;
    const Storage* from = nullptr;
    Event ready = {};
  };
  void fetch(TensorIndex number, const Tensor& x);

  std::vector<std::map<std::size_t, std::vector<TensorIndex>>> asked_;  // by section, instruction
  std::map<TensorIndex, HostCopy> fetched_;                             // not used yet
  std::vector<HostCopy> used_;  // may still be read; without the copies
  std::optional<Stream> stream_ = {};
};

}  // namespace tessera
