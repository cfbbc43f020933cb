export module tessera.dtensor:factories;

import tessera.base;
import tessera.placement;
import tessera.tensor;

export namespace tessera {

// Distributed tensors that are made in place: each rank makes its local part only, without
// communication. Leaves; set_requires_grad() as for any other. On a rank outside of the layout's
// mesh the result is undefined, and random streams move on as everywhere.
// Errors: the layout shards a dim that the shape lacks; a value cannot be made in a layout with
// Partial (make it Replicate and redistribute); random numbers and ranges of a type that has none.

Tensor distributed_empty(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                         Device device = cpu);
Tensor distributed_zeros(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                         Device device = cpu);
Tensor distributed_ones(const Dims& shape, const Layout& layout, DType dtype = DType::f32,
                        Device device = cpu);
Tensor distributed_full(const Dims& shape, double value, const Layout& layout,
                        DType dtype = DType::f32, Device device = cpu);
/// Uniform in [low, high); the numbers of one device, in every layout.
Tensor distributed_uniform(const Dims& shape, double low, double high, const Layout& layout,
                           const RandomSource& source, DType dtype = DType::f32);
Tensor distributed_normal(const Dims& shape, double mean, double deviation, const Layout& layout,
                          const RandomSource& source, DType dtype = DType::f32);
/// start, start + step, ... below (for a negative step above) end: ceil((end - start) / step)
/// elements. Error: a step of 0, or one that leads away from the end.
Tensor distributed_arange(double start, double end, double step, const Layout& layout,
                          DType dtype = DType::i64);

}  // namespace tessera
