module;
#include <cstdint>
export module tessera.ops:matmul;

import tessera.tensor;

export namespace tessera::ops {

/// [m, k] x [k, n]. Either may be a transposed view: no copy is made of it.
Tensor mm(const Tensor& a, const Tensor& b);
/// [b, m, k] x [b, k, n].
Tensor bmm(const Tensor& a, const Tensor& b);
/// As torch.matmul: vectors, matrices, and batches that broadcast.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x [..., in] times weight [out, in] transposed, plus bias [out] (may be undefined).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// bias + a x b, bias broadcast to [m, n].
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b);

}  // namespace tessera::ops
