export module tessera.ops:matmul;

import tessera.base;
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
/// beta bias + alpha a x b, bias broadcast to the product; bias is not read for beta 0.
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b, double beta = 1,
             double alpha = 1);
Tensor baddbmm(const Tensor& bias, const Tensor& a, const Tensor& b, double beta = 1,
               double alpha = 1);
/// [m, k] x [k].
Tensor mv(const Tensor& a, const Tensor& x);
/// The sum of the products of two vectors of one length.
Tensor dot(const Tensor& a, const Tensor& b);
/// [m] and [n] -> [m, n].
Tensor outer(const Tensor& a, const Tensor& b);
/// "bij,bjk->bik": the products of all operands, summed over the letters that the result lacks;
/// without "->" the result has the letters that occur once, in the alphabet's order. "..." stands
/// for leading dims that broadcast. Two operands at a time, from the left, by matmul.
Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands);

}  // namespace tessera::ops
