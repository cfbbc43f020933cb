module;
#include <cstdint>
export module tessera.ops:random;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// Number i of a call belongs to GLOBAL element i: the same bits in every layout. Each call takes
// numel() numbers (rounded up to 4) of the stream.
/// Fills x in place: uniform in [low, high), normal with mean and deviation.
Tensor uniform_(const Tensor& x, double low, double high, RandomStream& stream);
Tensor normal_(const Tensor& x, double mean, double deviation, RandomStream& stream);
/// x / (1 - p) where a number is >= p, else 0. The mask is not stored: backward makes it again.
Tensor dropout(const Tensor& x, double p, RandomStream& stream);

}  // namespace tessera::ops
