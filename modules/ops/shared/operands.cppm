export module tessera.ops:operands;

import tessera.base;
import tessera.tensor;

/// What the slices of operators share: broadcasting, dims as the user counts them, types.
export namespace tessera::operands {

/// The shape to which both broadcast. Errors: extents that differ and are not 1.
Dims broadcast_shape(std::string_view op, const Dims& a, const Dims& b);
/// Errors: `shape` does not broadcast to `wanted` itself.
void check_broadcasts_to(std::string_view op, const Dims& shape, const Dims& wanted);
/// Strides with which a strided tensor is read in the broadcast shape: 0 where it repeats.
Dims broadcast_strides(const Tensor& x, const Dims& shape);
[[noreturn]] void not_given(std::string_view function, std::string_view operand);
/// Errors: x is undefined. For functions that look at an operand before they call the operator,
/// which refuses undefined ones by itself.
inline void given(std::string_view function, std::string_view operand, const Tensor& x) {
  if (!x) [[unlikely]] {
    not_given(function, operand);
  }
}
/// Errors: the two types differ.
void check_same_type(std::string_view op, const Tensor& a, const Tensor& b);
/// Errors: not a floating type.
void check_floating(std::string_view op, const Tensor& x);
/// The type in which two operands meet: a tensor without dims does not widen one that has dims.
DType common_type(const Tensor& a, const Tensor& b);

/// x in the type of `written`, for the form that writes it. Errors: the result would be of a kind
/// that `written` cannot hold (floating, where it holds integers).
Tensor in_place_operand(std::string_view op, const Tensor& written, const Tensor& x);
/// Calls an elementwise operator of two operands on both in the type in which they meet.
Tensor call_promoted(const Op& op, const Tensor& a, const Tensor& b);

/// Shape rule of an elementwise operator of two operands: one type, the broadcast shape.
void infer_broadcast(const Call& call, ResultShapes& out);

/// An elementwise operator and its forms that write a tensor which keeps its memory: "name_" the
/// first operand, "name_out" a tensor given before the operands (as `out=` in PyTorch).
struct PointwiseForms {
  const Op& op;
  const Op& in_place;
  const Op& into;
};
/// Registers `op` and both forms, which share its functions. Its `cpu` must be correct where
/// the result is the same view as an operand (other overlaps are refused before); a result that is
/// not contiguous is computed into memory of its own and copied. A form keeps the placements of
/// `op` that leave what is written as it lies.
PointwiseForms register_pointwise(const Op& op);
/// With the arguments of this aggregate (void: none).
template <class Args>
inline PointwiseForms register_pointwise(Op op) {
  return register_pointwise(with_arguments<Args>(std::move(op)));
}

/// Dims counted from the front, in ascending order; all dims for none. Errors: out of range, twice.
Dims sorted_dims(const char* op, const Dims& dims, int count);
/// The dim counted from the front; a tensor without dims counts as one of one dim.
int front_dim(const char* op, std::int64_t dim, int count);
/// What is left of `shape` without `dims` (sorted), or with extents of 1 there.
Dims reduced_shape(const Dims& shape, const Dims& dims, bool keepdim);

/// The arguments of a reduction, or what they begin with.
struct ReducedDims {
  Dims dims;  // sorted
  bool keepdim;
};
/// The arguments of a reduction along one dim.
struct ReducedDim {
  std::int64_t dim;
  bool keepdim;
};
ReducedDims reduced_dims(const Call& call);
ReducedDims reduced_dims(const BackwardContext& context);
/// Calls a reduction with these arguments and no others.
Tensor call_reduction(const Op& op, const Tensor& x, const Dims& dims, bool keepdim);

/// The values of norms of order p that may be terms of them, NormPartial(p) on some axes. There the
/// ranks reduce their powers: declared all-reduces of y's numbers. For backward, which needs the
/// whole norm; y itself where there is nothing to reduce.
Tensor whole_norm(const Tensor& y, double p);

/// An operand of a reduction as its kernels want it: contiguous [outer, reduced, inner].
struct ReducedOperand {
  Tensor x;
  std::int64_t outer = 1;
  std::int64_t reduced = 1;
  std::int64_t inner = 1;
};
/// Brings `dims` (sorted) together; copies where they do not lie so already.
ReducedOperand reduced_operand(const Tensor& x, const Dims& dims);

/// Strided x in contiguous memory: x itself, or a copy. For kernels: no gradient's path.
Tensor contiguous(const Tensor& x);
/// Writes strided x, broadcast to `into`'s shape, over strided `into` of the same type.
void copy_elements(const Tensor& x, const Tensor& into);

/// The gradient of broadcasting `shape` to x's shape: sums what was repeated. By operators.
Tensor sum_to(const Tensor& x, const Dims& shape);
/// The gradient of a reduction over `dims` (sorted): x repeated along them. By operators.
Tensor spread(const Tensor& x, const Dims& dims, bool keepdim, const Dims& shape);

}  // namespace tessera::operands
