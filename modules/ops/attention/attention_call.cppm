// Shared parts of the fused attentions: the checks of q, k and v, and the calls of the kernels, for
// operands in either order of dims.
module;
#include "attention/kernels/attention.hpp"
#include "shared/kernels/types.hpp"
module tessera.ops:attention_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :attention;
import :kernel_call;

namespace tessera::ops::attention {

using kernels::AttentionStrides;

/// Which dims of q, k and v are which.
struct DimOrder {
  int time;
  int heads;
  const char* expected;
};
inline constexpr DimOrder time_first{1, 2,
                                     "q [B, Tq, H, D], k [B, Tk, KV, D] and v [B, Tk, KV, Dv]"};
inline constexpr DimOrder heads_first{2, 1,
                                      "q [B, H, Tq, D], k [B, KV, Tk, D] and v [B, KV, Tk, Dv]"};

void check(const Call& call, const DimOrder& form, const Tensor& q, const Tensor& k,
           const Tensor& v);

/// Of a token in a sequence: far beyond any, and sums of such numbers do not overflow. Longer
/// windows are as good as this one.
inline constexpr std::int64_t largest_position = std::int64_t{1} << 40;

/// Errors: a window or a softcap below 0.
void check_limits(const Call& call, std::int64_t window, double softcap);

/// Which keys a query sees, and what becomes of its scores.
struct Scores {
  double scale = 0;  // 0: 1/sqrt(D)
  Causal causal = Causal::none;
  std::int64_t window = 0;  // see CausalOptions
  double softcap = 0;
  Tensor documents = {};
  /// Queries and keys are parts of a sequence, and these their first positions in it: see
  /// AttentionBlockOptions.
  bool is_block = false;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
};

/// Without the documents, which are memory of a call.
kernels::AttentionShape shape_of(const DimOrder& form, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Scores& scores);
/// The shape with a contiguous operand for the documents. Errors: they do not follow one another.
kernels::AttentionShape shape_of(Workspace& w, const Call& call, const DimOrder& form,
                                 const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Scores& scores);

/// The operand as the kernel takes it: any strides, but the last dim in one piece.
Tensor rows_of_heads(Workspace& w, const Tensor& x);

AttentionStrides strides_of(const DimOrder& form, const Tensor& x);

/// The shape of the result: q's, with v's last dim.
Dims result_shape(const Tensor& q, const Tensor& v);
void push_results(const DimOrder& form, const Tensor& q, const Tensor& v, ResultShapes& out);

/// Op::flops of attention: `products` of them, half over the head dim of q and k and half over that
/// of v, for each query and key that it sees. Masks and
/// documents are not looked at.
double pair_flops(const DimOrder& form, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Scores& scores, int products);

/// That of an attention without masks, for forward() and gradient().
inline constexpr auto no_mask = []<class T>(const Workspace&, T) {
  return kernels::AttentionMask<T>{};
};

/// `mask_of(w, T)` gives the masks for elements of type T.
template <class MaskOf>
inline void forward(const Call& call, const DimOrder& form, const Scores& scores,
                    std::span<const Tensor> out, Workspace& w, MaskOf mask_of) {
  if (out[0].numel() == 0) {
    return;
  }
  const Tensor q = rows_of_heads(w, call.in[0]);
  const Tensor k = rows_of_heads(w, call.in[1]);
  const Tensor v = rows_of_heads(w, call.in[2]);
  const kernels::AttentionShape shape = shape_of(w, call, form, q, k, v, scores);
  visit_floating(q.dtype(), call.op.name, [&]<class T>(T zero) {
    kernels::attention_forward(w, shape, pointer<T>(w, q), strides_of(form, q), pointer<T>(w, k),
                               strides_of(form, k), pointer<T>(w, v), strides_of(form, v),
                               pointer<T>(w, out[0]), strides_of(form, out[0]),
                               pointer<kernels::Compute<T>>(w, out[1]), mask_of(w, zero));
  });
}

/// Operands dy, q, k, v, y, lse; results the gradients of q, k, v. Of a block, operand 4 is not y
/// but dy . y of each query.
template <class MaskOf>
inline void gradient(const Call& call, const DimOrder& form, const Scores& scores,
                     std::span<const Tensor> out, Workspace& w, MaskOf mask_of) {
  const Tensor dy = rows_of_heads(w, call.in[0]);
  const Tensor q = rows_of_heads(w, call.in[1]);
  const Tensor k = rows_of_heads(w, call.in[2]);
  const Tensor v = rows_of_heads(w, call.in[3]);
  const Tensor y = scores.is_block ? Tensor() : rows_of_heads(w, call.in[4]);
  const Tensor delta = scores.is_block ? contiguous_operand(w, call.in[4]) : Tensor();
  const Tensor lse = contiguous_operand(w, call.in[5]);
  const kernels::AttentionShape shape = shape_of(w, call, form, q, k, v, scores);
  visit_floating(q.dtype(), call.op.name, [&]<class T>(T zero) {
    using C = kernels::Compute<T>;
    const kernels::AttentionGradient<T, C> arguments{
        .q = pointer<T>(w, q),
        .q_strides = strides_of(form, q),
        .k = pointer<T>(w, k),
        .k_strides = strides_of(form, k),
        .v = pointer<T>(w, v),
        .v_strides = strides_of(form, v),
        .out = pointer<T>(w, y),
        .out_strides = y ? strides_of(form, y) : AttentionStrides(),
        .log_sum_exp = pointer<C>(w, lse),
        .dout = pointer<T>(w, dy),
        .dout_strides = strides_of(form, dy),
        .dq = pointer<T>(w, out[0]),
        .dq_strides = strides_of(form, out[0]),
        .dk = pointer<T>(w, out[1]),
        .dk_strides = strides_of(form, out[1]),
        .dv = pointer<T>(w, out[2]),
        .dv_strides = strides_of(form, out[2]),
        .mask = mask_of(w, zero),
        .delta = pointer<C>(w, delta),
    };
    kernels::attention_backward(w, shape, arguments);
  });
}

inline void check_gradient(const Call& call, const DimOrder& form, bool is_block = false) {
  const Tensor& q = call.in[1];
  const Dims result = result_shape(q, call.in[3]);
  const Dims statistics{q.shape()[0], q.shape()[form.heads], q.shape()[form.time]};
  check_shape(call, 0, result);
  check_type(call, 0, q.dtype());
  check_shape(call, 4, is_block ? statistics : result);
  check_type(call, 4, is_block ? statistics_type(q.dtype()) : q.dtype());
  check_type(call, 5, statistics_type(q.dtype()));
  check_shape(call, 5, statistics);
}

/// Whether each rank gets whole groups of query heads with their key/value head, when all operands
/// are cut as finely as the finest. `q` is q's place: 0, or 1 after the gradient; `mask_dim` the
/// last operand's dim of the heads, or -1.
inline bool heads_divide(const RuleContext& context, const DimOrder& form, std::size_t q,
                         int mask_dim = -1) {
  const auto in = context.call.in;
  const std::size_t mask = q == 0 ? 3 : 6;
  std::int64_t shards = 1;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const bool statistics = in[i] && in[i].dims() == 3;  // [B, H, Tq]
    const int dim = i == mask ? mask_dim : statistics ? 1 : form.heads;
    if (in[i] && dim >= 0) {
      shards = std::max(shards, context.shards_of(i, dim));
    }
  }
  return in[q].shape()[form.heads] % shards == 0 && in[q + 1].shape()[form.heads] % shards == 0;
}

/// A gradient of attention that is differentiated again: its operands, heads first.
struct GradientCall {
  Tensor dy;         // [B, H, Tq, Dv]
  Tensor q;          // [B, H, Tq, D]
  Tensor k;          // [B, KV, Tk, D]
  Tensor v;          // [B, KV, Tk, Dv]
  Tensor mask = {};  // bool or added, or none
  Scores scores = {};
  double dropout_p = 0;
  RandomNumbers numbers = {};
};

/// The gradients of those operands.
struct RecomputedGradients {
  Tensor dy;
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor mask;  // of all scores
};

/// From the gradients of dq, dk, dv and, where the call has made it, of the scores' gradient; an
/// undefined one stands for zeros. By operators, which hold all scores, in the type of sums.
RecomputedGradients differentiate_again(const GradientCall& call, std::span<const Tensor> grads);

/// The rule of attention of q, k, v and documents with time first: by batch, or by heads.
void time_first_rule(const RuleContext& context, Strategies& strategies);
/// That of its gradient: of dy, q, k, v, an operand that has placements of `fifth_by_heads` where
/// heads are split, lse and documents.
void time_first_gradient_rule(const RuleContext& context, Strategies& strategies,
                              Placement fifth_by_heads);
/// The gradients of q, k and v: operands 1 to 3 of a backward.
void push_gradients(const Call& call, ResultShapes& out);

}  // namespace tessera::ops::attention
