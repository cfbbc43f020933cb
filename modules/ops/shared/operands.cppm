export module tessera.ops:operands;

import tessera.base;
import tessera.tensor;

/// Shared parts of operators: broadcasting, dims as the user counts them, types.
export namespace tessera::operands {

/// The shape to which both broadcast. Errors: extents that differ and are not 1.
Dims broadcast_shape(std::string_view op, const Dims& a, const Dims& b);
/// Errors: `shape` does not broadcast to `wanted` itself.
void check_broadcasts_to(std::string_view op, const Dims& shape, const Dims& wanted);
/// Strides for reading a strided tensor in the broadcast shape: 0 for repeated dims.
Dims broadcast_strides(const Tensor& x, const Dims& shape);
[[noreturn]] void not_given(std::string_view function, std::string_view operand);
/// Errors: x is undefined. For functions that read an operand before they call the operator; the
/// operator itself refuses undefined operands.
inline void given(std::string_view function, std::string_view operand, const Tensor& x) {
  if (!x) [[unlikely]] {
    not_given(function, operand);
  }
}
/// Errors: the two types differ.
void check_same_type(std::string_view op, const Tensor& a, const Tensor& b);
/// Errors: not a floating type.
void check_floating(std::string_view op, const Tensor& x);
/// The common type of two operands: a tensor without dims does not widen a tensor that has dims.
DType common_type(const Tensor& a, const Tensor& b);

/// x in the type of `written`, for an in-place variant. Errors: `written` cannot hold the result
/// (it contains integers and the result is floating).
Tensor in_place_operand(std::string_view op, const Tensor& written, const Tensor& x);
/// Calls an elementwise operator of two operands on both, cast to their common type.
Tensor call_promoted(const Op& op, const Tensor& a, const Tensor& b);

/// Shape rule of an elementwise operator of two operands: one type, the broadcast shape.
void infer_broadcast(const Call& call, ResultShapes& out);

/// An elementwise operator and its variants that write an existing tensor: "name_" writes the first
/// operand, "name_out" writes a tensor that comes before the operands (PyTorch's `out=`).
struct PointwiseForms {
  const Op& op;
  const Op& in_place;
  const Op& into;
};
/// Registers `op` and both variants, which share its functions. `cpu` must be correct if the result
/// is the same view as an operand (other overlaps are refused before the call); a result that is
/// not contiguous is computed into temporary memory and copied. A variant accepts those strategies
/// of the placement rule that keep the layout of the written tensor.
PointwiseForms register_pointwise(const Op& op);
/// With the arguments of this aggregate (void: none).
template <class Args>
inline PointwiseForms register_pointwise(Op op) {
  return register_pointwise(with_arguments<Args>(std::move(op)));
}

/// The dims counted from the front, in ascending order; all dims if the list is empty. Errors: a
/// dim is out of range or named twice.
Dims sorted_dims(const char* op, const Dims& dims, int count);
/// The dim counted from the front; a tensor without dims is treated as if it had one dim.
int front_dim(const char* op, std::int64_t dim, int count);
/// `shape` without `dims` (sorted), or with extents of 1 at these dims.
Dims reduced_shape(const Dims& shape, const Dims& dims, bool keepdim);

/// The first attributes of every reduction: "dims: dims, keepdim: bool".
struct ReducedDims {
  Dims dims;  // sorted
  bool keepdim;
};
/// The arguments of a reduction along one dim.
struct ReducedDim {
  std::int64_t dim;
  bool keepdim;
};

/// The arguments of operators with one number.
struct ValueArgs {
  Dynamic<double> value;
};
struct AlphaArgs {
  Dynamic<double> alpha;
};
struct WeightArgs {
  Dynamic<double> weight;
};

/// Dims that a call, or the call of a gradient, reduces.
ReducedDims reduced_dims(const Call& call);
ReducedDims reduced_dims(const BackwardContext& context);
/// Calls a reduction that has only these attributes.
Tensor call_reduction(const Op& op, const Tensor& x, const Dims& dims, bool keepdim);

/// The norm of order p of the whole tensor, for backward. If y is a NormPartial(p) on some mesh
/// axes, the ranks reduce their powers in declared all-reduces; otherwise the result is y itself.
Tensor whole_norm(const Tensor& y, double p);
/// The whole sum, for operators whose caller allows them to communicate. If x is Partial(sum) on
/// some mesh axes, the ranks reduce it in declared all-reduces, which reports list as whole_sum;
/// otherwise the result is x itself. Its gradient is whole too.
Tensor whole_sum(const Tensor& x);

/// The operand of a reduction in the kernels' form: contiguous [outer, reduced, inner].
struct ReducedOperand {
  Tensor x;
  std::int64_t outer = 1;
  std::int64_t reduced = 1;
  std::int64_t inner = 1;
};
/// Makes `dims` (sorted) adjacent; copies x if they are not adjacent in memory.
ReducedOperand reduced_operand(const Tensor& x, const Dims& dims);

/// x in contiguous memory: x itself, or a copy. For kernels: autograd does not record it.
Tensor contiguous(const Tensor& x);
/// Writes strided x, broadcast to `into`'s shape, over strided `into` of the same type.
void copy_elements(const Tensor& x, const Tensor& into);

/// The gradient of broadcasting `shape` to x's shape: sums over the repeated elements. Composed of
/// operators.
Tensor sum_to(const Tensor& x, const Dims& shape);
/// The gradient of a reduction over `dims` (sorted): x repeated along them. Composed of operators.
Tensor spread(const Tensor& x, const Dims& dims, bool keepdim, const Dims& shape);

}  // namespace tessera::operands
