export module tessera.conformance:compare;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

// Tensors of values to compare, in memory of several forms, and how far values may differ.

export namespace tessera::conformance {

/// The largest |a - b| / (1 + |b|); infinity where shapes or types differ, or one is not a number
/// and the other is.
double largest_difference(const Tensor& a, const Tensor& b);
/// The tolerance at which results of this type agree with those of another program.
double tolerance(DType dtype);
/// The distance from 1 to the next number; 0 for types that are not floating.
double epsilon(DType dtype);

/// Positive values (f64), different for each element.
Tensor numbers(const Dims& shape, double shift = 0);
/// x with other memory of the same form; an undefined tensor stays so.
Tensor copy_of(const Tensor& x);
std::vector<Tensor> copies_of(std::span<const Tensor> tensors);
/// The values in every second element of memory twice as wide, after an offset.
Tensor spaced(const Tensor& x);

}  // namespace tessera::conformance
