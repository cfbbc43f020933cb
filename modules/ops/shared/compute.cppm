export module tessera.ops:compute;

export namespace tessera::ops {

/// Sets and returns the number of threads (at least 1) that the kernels of the calling rank use.
void set_threads(int count);
int threads();

/// FLOP/s of a large f32 product on the calling rank's threads, measured for about `seconds`: the
/// reference for the speed of a training step.
double measure_gemm(double seconds);

}  // namespace tessera::ops
