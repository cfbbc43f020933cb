export module tessera.dtensor:factories;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

// Creates distributed tensors: each rank creates only its local part, without communication. The
// results are leaves. On a rank outside of the layout's mesh the result is undefined, and random
// streams advance as on the other ranks.
// Errors: the layout shards a dim that the shape does not have; values in a layout with Partial
// (create them as Replicate and redistribute); a type that has no random numbers or ranges.

/// Distributed tensors of this global shape: each rank makes its own part.
Tensor distributed_empty(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                         Device device = cpu);
Tensor distributed_zeros(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                         Device device = cpu);
Tensor distributed_ones(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                        Device device = cpu);
Tensor distributed_full(const Dims& shape, double value, const Layout& layout,
                        DType dtype = DType::f32, Device device = cpu);
/// Uniform in [low, high); the same numbers as on one device, in every layout.
Tensor distributed_uniform(const Dims& shape, double low, double high, const Layout& layout,
                           const RandomSource& source, DType dtype = DType::f32);
Tensor distributed_normal(const Dims& shape, double mean, double deviation, const Layout& layout,
                          const RandomSource& source, DType dtype = DType::f32);
/// start, start + step, ... below (for a negative step above) end: ceil((end - start) / step)
/// elements. Error: a step of 0, or one that leads away from the end.
Tensor distributed_arange(double start, double end, double step, const Layout& layout,
                          DType dtype = DType::i64);

}  // namespace tessera
