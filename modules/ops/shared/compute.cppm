export module tessera.ops:compute;

export namespace tessera::ops {

/// How many threads the kernels of the calling rank may use (at least 1), and how many they do.
void set_threads(int count);
int threads();

/// FLOP/s of a large f32 product on the calling rank's threads, measured for about `seconds`: the
/// ceiling that a step is held against.
double measure_gemm(double seconds);

}  // namespace tessera::ops
