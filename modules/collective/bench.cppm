export module tessera.collective:bench;

import tessera.base;
import tessera.communication;

export namespace tessera::collective {

/// One collective at one size. Sizes are those of the larger side: the gathered, scattered or
/// reduced tensor.
struct CollectiveRate {
  std::string name;            ///< "all_reduce", ...; " (private)" when sources are ordinary memory
  std::size_t bytes = 0;       ///< of the whole tensor
  double seconds = 0;          ///< per call: the slowest rank in the fastest of several batches
  double received_bytes = 0;   ///< bytes that a rank writes into its destination; its
                               ///< own elements only where the call copies them
  double memcpy_seconds = 0;   ///< for all ranks at once to memcpy as many bytes, same run
  double share_of_memcpy = 0;  ///< memcpy_seconds / seconds
};

/// Measures all_reduce, all_gather and reduce_scatter (f32) over the communicator at the given
/// sizes, with rotating buffers. Collective: every rank calls it, every rank gets the same figures.
std::vector<CollectiveRate> measure_collectives(Communicator& communicator,
                                                const std::vector<std::size_t>& sizes = {
                                                    std::size_t{64} << 10, std::size_t{1} << 20,
                                                    std::size_t{16} << 20});

}  // namespace tessera::collective
