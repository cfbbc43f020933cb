// Operands as kernels need them: contiguous data, matrices within strides, the
// C++ type of an element type; and the words of the checks that operators share.
module;
#include <tessera/half.hpp>

#include "matmul/kernels/gemm.hpp"
#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops:kernel_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :operands;

namespace tessera::ops {

/// The type in which statistics of `dtype` are kept: f64 for f64, else f32.
inline DType statistics_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

using kernels::Workspace;

/// Computes a call whose intermediate values are in a workspace. With a workspace that only
/// counts it touches no tensor's memory, as the tensors may be anywhere: it takes what it needs,
/// and returns.
using WorkspaceKernel = void (*)(const Call& call, std::span<const Tensor> out, Workspace& w);
/// Op::cpu and Op::workspace of such a kernel: both are this one function.
template <WorkspaceKernel kernel>
inline void in_workspace(const Call& call, std::span<Tensor> out) {
  Workspace w(call.workspace.data(), call.workspace.size());
  kernel(call, out, w);
}
template <WorkspaceKernel kernel>
inline std::size_t workspace_of(const Call& call, std::span<const Tensor> out) {
  Workspace w;
  kernel(call, out, w);
  return w.bytes();
}
/// Op::workspace of a kernel that only copies operands, where they are not contiguous.
template <WorkspaceKernel kernel>
inline std::size_t workspace_of_copies(const Call& call, std::span<const Tensor> out) {
  for (const Tensor& x : call.in) {
    if (x && !x.is_contiguous()) {
      return workspace_of<kernel>(call, out);
    }
  }
  return 0;
}

// Local tensors only; no operator is called, so no mode sees these. With a workspace, copies are in
// it; a workspace that only counts gives tensors of the right shape that must not be read.
/// x itself when it is contiguous, else a copy.
Tensor contiguous_operand(const Tensor& x);
Tensor copied_operand(Workspace& w, const Tensor& x);
inline Tensor contiguous_operand(Workspace& w, const Tensor& x) {
  return !x || x.is_contiguous() ? x : copied_operand(w, x);
}
/// Contiguous data of an operand, for kernels so short that they notice what another handle of x
/// costs.
class ContiguousOperand {
 public:
  ContiguousOperand(Workspace& w, const Tensor& x) : x_(x) {
    if (x && !x.is_contiguous()) {
      copy_ = copied_operand(w, x);
    }
  }
  const Tensor& operator*() const { return copy_ ? copy_ : x_; }

 private:
  const Tensor& x_;
  Tensor copy_;
};
/// A contiguous tensor in the workspace, not initialised.
Tensor temporary(Workspace& w, const Dims& shape, DType dtype);
/// The operand of a reduction in the kernels' form [outer, reduced, inner], not yet contiguous.
operands::ReducedOperand reduced_view(const Tensor& x, const Dims& dims);
/// As operands::reduced_operand.
operands::ReducedOperand reduced_operand(Workspace& w, const Tensor& x, const Dims& dims);
/// Copies x into `into`, both with their strides. The shapes are equal.
void copy_into(const Tensor& into, const Tensor& x);
/// x seen with dims d0 and d1 exchanged.
Tensor transposed_operand(const Tensor& x, int d0, int d1);
/// x seen with another shape; x is contiguous.
Tensor reshaped_operand(const Tensor& x, const Dims& shape);
/// x with only [start, start + length) of `dim`.
Tensor narrowed_operand(const Tensor& x, int dim, std::int64_t start, std::int64_t length);
/// x repeated to `shape`, aligned at the ends.
Tensor expanded_operand(const Tensor& x, const Dims& shape);

/// x, contiguous, in another floating type: x itself, or a copy.
Tensor converted_operand(Workspace& w, const Tensor& x, DType type);
/// Sets all of contiguous x to 0.
void clear(const Tensor& x);
/// Copies contiguous x into contiguous `into`, with a cast; nothing when they are the same tensor.
void convert_into(const Tensor& into, const Tensor& x);
/// The type in which elements of `dtype` are added up (kernels::Summed): f32 for 16 bits.
inline DType summed_type(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype;
}
/// Memory for sums of `into`'s shape: `into` itself, or fresh, as 16 bits are rounded once, at the
/// end, by convert_into.
Tensor sums_for(Workspace& w, const Tensor& into);
/// Calls add(sums) to add to what contiguous `into` holds; add writes contiguous `sums`.
template <class Add>
inline void add_into(Workspace& w, const Tensor& into, Add add) {
  const Tensor sums = sums_for(w, into);
  if (w.counts()) {
    return;
  }
  convert_into(sums, into);
  add(sums);
  convert_into(into, sums);
}
/// Calls update(whole) with what `into` holds, contiguous; what it leaves there is in `into` then.
template <class Update>
inline void update_contiguous(Workspace& w, const Tensor& into, Update update) {
  const Tensor whole = contiguous_operand(w, into);
  update(whole);
  if (!w.counts() && !whole.same_as(into)) {
    copy_into(into, whole);
  }
}
/// Adds to zeros instead of what `into` holds.
template <class Add>
inline void sum_into(Workspace& w, const Tensor& into, Add add) {
  const Tensor sums = sums_for(w, into);
  if (w.counts()) {
    return;
  }
  clear(sums);
  add(sums);
  convert_into(into, sums);
}
/// Settings of two dims: one number stands for both.
Dims for_both_dims(const Dims& setting);

/// One matrix as the kernels take it: rows x columns with a row stride, or stored transposed.
struct Matrix {
  Tensor tensor;  // keeps a copy alive
  std::int64_t stride = 0;
  bool transposed = false;
};
/// The last two dims of x as a matrix; copied only when neither of them has stride 1.
Matrix matrix_operand(Workspace& w, const Tensor& x);
/// All dims but the last of x as rows; copied only when they do not lie at one distance.
Matrix rows_operand(Workspace& w, const Tensor& x);

/// A vector seen as a matrix of one column, or of one row.
Tensor column_of(const Tensor& x);
Tensor row_of(const Tensor& x);

/// Op::flops of products: `elements` results, each a sum of `terms` products.
inline double product_flops(std::int64_t elements, std::int64_t terms) {
  return 2.0 * static_cast<double>(elements) * static_cast<double>(terms);
}
/// Counts the work where operand `left` has the dim that is summed over as its last one.
template <std::size_t left>
inline double last_dim_flops(const Call& call, std::span<const Tensor> out) {
  return product_flops(out[0].numel(), call.in[left].shape().back());
}
/// Counts the work of convolutions: each element of y is a sum over the kernel of weight [O, C /
/// groups, kh, kw]. Which tensors these are: 0 and 1 are operands, 2 is the result.
template <std::size_t y, std::size_t weight>
inline double kernel_flops(const Call& call, std::span<const Tensor> out) {
  const Dims& w = (weight == 2 ? out[0] : call.in[weight]).shape();
  return product_flops((y == 2 ? out[0] : call.in[y]).numel(), w[1] * w[2] * w[3]);
}
/// The product of matrices in memory, of any floating type, i64, i32 or u8. Integers wrap. `out`
/// has the operands' type, or that of their sums (summed_type).
void multiply(Workspace& w, const Call& call, const kernels::Gemm& shape, const Tensor& a,
              const Tensor& b, const Tensor& out);
/// out = left right, plus out's own content when `accumulate`: matrices, or batches of them.
void multiply(Workspace& w, const Call& call, const Tensor& left, const Tensor& right,
              const Tensor& out, bool accumulate);

/// Result of an operator's localize() whose local call has to know of which tensor it is part:
/// the call's arguments with that tensor's Spec.
template <class A>
inline Attributes with_whole(const LocalContext& context, const SpecHandle& whole) {
  A arguments = context.call.args<A>();
  arguments.whole = {whole};
  return arguments;
}

/// "name: what".
[[noreturn]] void refuse(const Call& call, const std::string& what);
[[noreturn]] void refuse(const Call& call, ErrorFields fields);
[[noreturn]] void refuse_type(std::string_view name, DType dtype);
/// Errors: operand `i` does not have `dims` dims.
void check_dims(const Call& call, std::size_t i, int dims);
/// Errors: operand `i` is present and has another shape.
void check_shape(const Call& call, std::size_t i, const Dims& shape);
/// Errors: an operand is present and has another type than operand 0.
void check_one_type(const Call& call);

/// Errors: operand `i` has another type.
void check_type(const Call& call, std::size_t i, DType dtype);

/// How far a window can move along a dim: the padded extent less what the window covers; negative
/// where it does not fit. Errors: these are not int64s.
std::int64_t window_room(const Call& call, std::int64_t extent, std::int64_t kernel,
                         std::int64_t dilation, std::int64_t padding);
/// How many windows there are along a dim; 0 where not even one fits.
std::int64_t windows_along(const Call& call, std::int64_t extent, std::int64_t kernel,
                           std::int64_t dilation, std::int64_t stride, std::int64_t padding,
                           bool ceil_mode);
/// The shape without its last dim.
Dims without_last(const Dims& shape);
/// Adds Partial(sum) and Partial(avg) in the operands that `operands` has a bit for, the others
/// Replicate, giving the same Partial in the results that `results` has a bit for.
void pass_partial(const RuleContext& context, Strategies& strategies, unsigned operands,
                  unsigned results = ~0U);

/// Calls an operator that writes lists of tensors, one after the other, outside of any graph;
/// empty lists are nothing to do. Errors: lists of different lengths.
void call_lists(const Op& op, std::initializer_list<std::span<const Tensor>> lists,
                const Attributes& attributes);

// Parts of gradients that can be differentiated again, by operators.
/// sum + term; the term itself where nothing was added yet.
void add_to(Tensor& sum, const Tensor& term);
/// The backward of layer_norm_backward (`centred`) and of rms_norm_backward: operands dy, x,
/// weight, the mean (where centred) and rstd, results dx, dweight and dbias (where centred).
void norm_second_derivative(const BackwardContext& context, std::span<const Tensor> grads,
                            std::span<Tensor> out, bool centred);
/// Addition to x's gradient by the gradients of its rows' statistics, each of which may be
/// undefined; `mean` undefined: rstd is 1 / the root mean square.
Tensor of_statistics(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& of_mean,
                     const Tensor& of_rstd);

/// Calls f with a value of the C++ type of a floating element type.
template <class F>
inline auto visit_floating(DType dtype, std::string_view name, F&& f) {
  return kernels::visit<kernels::FloatingTypes>(dtype, f, [&] { refuse_type(name, dtype); });
}

/// A kernel's operand, null where it is undefined. As raw_data(), but modes, which see a call as
/// one piece, are not told of the address.
template <class T>
inline T* pointer(const Tensor& x) {
  if (!x) {
    return nullptr;
  }
  const TensorImpl& t = *x.impl();
  if ((t.keys & (distributed_key | meta_key | device_keys)) != 0) [[unlikely]] {
    return static_cast<T*>(x.raw_data());  // null, or the error
  }
  void* const base = t.storage->data();
  const std::int64_t at = t.offset * static_cast<std::int64_t>(size_of(t.dtype));
  return base == nullptr ? nullptr : reinterpret_cast<T*>(static_cast<std::byte*>(base) + at);
}
/// The tensor's memory for a kernel with this workspace: null when that only counts.
template <class T>
inline T* pointer(const Workspace& w, const Tensor& x) {
  return w.counts() ? nullptr : pointer<T>(x);
}

}  // namespace tessera::ops
