export module tessera.coded:code_rows;

import tessera.base;
import tessera.tensor;
import :code_type;

export namespace tessera::coded {

/// Rows of a weight in codes: bytes u8 [rows, bytes of a row], and for CodeType::int8 the scales of
/// the rows, f32 [rows].
struct CodeRows {
  CodeType type = CodeType::bf16;
  Tensor codes;
  Tensor scales = {};
};

/// The largest |x| of each row over 127, f32 [rows], of rows f32 [rows, columns].
Tensor scales_of_rows(const Tensor& values);
/// The codes of rows f32 [rows, columns], plain. `scales`: of CodeType::int8. Error (input): a
/// scale is not finite in the type.
CodeRows encoded(CodeType type, const Tensor& values, const Tensor& scales = {});
/// The elements, f32 [rows, columns]: with the bits that ggml decodes.
Tensor decoded(const CodeRows& rows);
/// Those of the rows with these numbers, i64 of any shape: [..., columns]; of number -1 zeros.
/// Error (input): there is no such row.
Tensor decoded_rows(const CodeRows& rows, const Tensor& numbers);
/// x f32 [..., columns] times the weight transposed: [..., rows]. Each element has the same bits
/// however many rows x has: those of the product with the decoded weight within RowProducts. With
/// Activations::int8 and codes that are integers, those of integer_products() in
/// kernels/integer_product.hpp, on every machine. Plain tensors in the CPU's memory. Error: extents
/// that do not fit.
Tensor product(const Tensor& x, const CodeRows& weight, Activations activations = Activations::f32);
/// Groups of rows with a weight each, in one loop: x f32 [rows, columns], of which the first
/// counts[0] rows are of the first group, and so on; `counts`, i64 [groups]. Each of `stacks` has
/// the rows of the groups' weights, one weight after the other. For each of them: [rows of x, rows
/// of a weight], where a row has the bits of product() with its weight, and those of no group are
/// 0. Only weights of groups that have rows are read. Errors: those of product(); counts that are
/// more than the rows; a stack that the groups do not divide.
Tensors group_products(const Tensor& x, const Tensor& counts, std::span<const CodeRows> stacks,
                       Activations activations = Activations::f32);

}  // namespace tessera::coded
