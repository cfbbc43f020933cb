export module tessera.ops:compute;

import tessera.base;

export namespace tessera::ops {

/// Sets and returns the number of threads (at least 1) that the kernels of the calling rank use.
void set_threads(int count);
int threads();

/// Calls body(first, last) on disjoint pieces of [0, count), on the calling rank's threads; pieces
/// have a multiple of `grain` elements but for the last one.
void in_pieces(std::int64_t count, std::int64_t grain,
               const std::function<void(std::int64_t first, std::int64_t last)>& body);

/// FLOP/s of a large f32 product on the calling rank's threads, measured for about `seconds`: the
/// reference for the speed of a training step.
double measure_gemm(double seconds);

/// Work of kernels beside their reads and writes, in f32.
enum class ComputeKind : std::uint8_t { exponentials, random_words };

/// Computes about `count` of these in the calling thread, by the functions that the kernels use, on
/// values that stay in the first-level cache: a bound for kernels that need as many.
void compute(ComputeKind what, std::int64_t count);

}  // namespace tessera::ops
