export module tessera.ops:matmul;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// Integer operands (i64, i32, u8) are multiplied and added in their own type and wrap, as in
// PyTorch.

/// [m, k] x [k, n]. A transposed view is not copied.
Tensor mm(const Tensor& a, const Tensor& b);
/// [b, m, k] x [b, k, n].
Tensor bmm(const Tensor& a, const Tensor& b);
/// As torch.matmul: vectors, matrices, and batches that broadcast.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x [..., in] times weight [out, in] transposed, plus bias [out] (may be undefined).
/// With StepContext::feature_blocks, `linear` and its gradients compute each product as blocks of
/// equal size, each with a call of its own, and sums over blocks follow a binary tree: dims of
/// weights, and the dims of x and dy that belong to them, are cut into so many parts of the whole
/// tensor. So a rank that has some of the parts computes the same bits as one that has all of them.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// The gradients of linear with respect to x and weight, for who computes them by hand: dy [...,
/// out] times weight [out, in]; dy transposed times x [..., in] over all rows, [out, in].
Tensor linear_grad_input(const Tensor& dy, const Tensor& weight);
Tensor linear_grad_weight(const Tensor& dy, const Tensor& x);
/// Adds linear_grad_weight(dy, x) to `sum` [out, in] in the product itself, without a tensor for
/// it. `sum` has the type of dy and x, or f32 for 16 bits: each product then is added before it is
/// rounded. Errors: another shape or type; a placement of `sum` that the product does not have.
void linear_grad_weight_(const Tensor& sum, const Tensor& dy, const Tensor& x);
/// beta bias + alpha a x b, bias broadcast to the product; bias is not read if beta is 0.
Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b, double beta = 1,
             double alpha = 1);
Tensor baddbmm(const Tensor& bias, const Tensor& a, const Tensor& b, double beta = 1,
               double alpha = 1);
/// Rows x [rows, k] in groups, each times the matrix of its group: weight [groups, k, n] -> [rows,
/// n]. Group g has counts[g] rows (counts: i64 [groups]), after those of the groups before; rows
/// after the last group's give 0 and are not computed. A transposed view of the weights is not
/// copied. `expected`: how many rows the counts are likely to sum to, for accounts of work; -1:
/// all. Errors: counts that are negative or sum to more than `rows`.
Tensor grouped_mm(const Tensor& x, const Tensor& weight, const Tensor& counts,
                  std::int64_t expected = -1);
/// For each group of the rows of a [rows, m] and b [rows, n], the transposed a times b: [groups, m,
/// n]; 0 for a group without rows. The gradient of grouped_mm with respect to its weights.
Tensor grouped_outer(const Tensor& a, const Tensor& b, const Tensor& counts,
                     std::int64_t expected = -1);
/// [m, k] x [k].
Tensor mv(const Tensor& a, const Tensor& x);
/// The dot product of two vectors of the same length.
Tensor dot(const Tensor& a, const Tensor& b);
/// [m] and [n] -> [m, n].
Tensor outer(const Tensor& a, const Tensor& b);
/// "bij,bjk->bik": the products of all operands, summed over the letters that the result does not
/// have. Without "->" the result has the letters that occur once, in alphabetical order. "..."
/// represents leading dims that broadcast. Multiplies two operands at a time, from the left, with
/// matmul.
Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands);

}  // namespace tessera::ops
