module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>

#include "attention/kernels/attention.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :attention_call;
import :kernel_call;
import :norm_call;
import :random_call;

namespace tessera::ops::attention {

using rules::strategy;

void check_limits(const Call& call, std::int64_t window, double softcap) {
  if (window < 0 || !(softcap >= 0)) {
    refuse(call, {.wrong = "window and softcap must be at least 0",
                  .got = fmt::format("{}, {}", window, printable(softcap))});
  }
}

void time_first_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Shard(0), Shard(0), Shard(0)}, {Shard(0), Shard(0)}));
  if (heads_divide(context, time_first, 0)) {
    strategies.push_back(
        strategy({Shard(2), Shard(2), Shard(2), Replicate()}, {Shard(2), Shard(1)}));
  }
}

void time_first_gradient_rule(const RuleContext& context, Strategies& strategies,
                              Placement fifth_by_heads) {
  const auto all = [&](Placement heads, Placement fifth, Placement of_lse, Placement documents) {
    strategies.push_back(
        strategy({heads, heads, heads, heads, fifth, of_lse, documents}, {heads, heads, heads}));
  };
  all(Shard(0), Shard(0), Shard(0), Shard(0));
  if (heads_divide(context, time_first, 1)) {
    all(Shard(2), fifth_by_heads, Shard(1), Replicate());
  }
}

void push_gradients(const Call& call, ResultShapes& out) {
  for (std::size_t i = 1; i <= 3; ++i) {
    out.push_back({call.in[i].shape(), call.in[i].dtype()});
  }
}

void check(const Call& call, const DimOrder& form, const Tensor& q, const Tensor& k,
           const Tensor& v) {
  const auto shapes = [&] {
    return fmt::format("q {}, k {}, v {}", to_string(q.shape()), to_string(k.shape()),
                       to_string(v.shape()));
  };
  const auto without_head = [](const Tensor& x) { return without_last(x.shape()); };
  if (q.dims() != 4 || k.dims() != 4 || v.dims() != 4 || without_head(k) != without_head(v) ||
      q.shape()[0] != k.shape()[0] || q.shape()[3] != k.shape()[3]) {
    refuse(call, {.wrong = "the shapes do not match", .expected = form.expected, .got = shapes()});
  }
  if (v.shape()[3] == 0 && k.shape()[3] != 0) {
    refuse(call, {.wrong = "the heads of v are empty", .expected = "Dv > 0", .got = shapes()});
  }
  const std::int64_t heads = q.shape()[form.heads];
  const std::int64_t kv_heads = k.shape()[form.heads];
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    refuse(call,
           {.wrong = "the heads of q must be a multiple of the heads of k and v", .got = shapes()});
  }
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype()) {
    refuse(call, {.wrong = "q, k and v have different types",
                  .got = fmt::format("{}, {}, {}", name_of(q.dtype()), name_of(k.dtype()),
                                     name_of(v.dtype())),
                  .advice = "cast them to one type"});
  }
}

kernels::AttentionShape shape_of(const DimOrder& form, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Scores& scores) {
  kernels::AttentionShape shape;
  shape.batch = q.shape()[0];
  shape.queries = q.shape()[form.time];
  shape.keys = k.shape()[form.time];
  shape.kv_heads = k.shape()[form.heads];
  shape.group = shape.kv_heads == 0 ? 1 : q.shape()[form.heads] / shape.kv_heads;
  shape.head_dim = q.shape()[3];
  shape.value_dim = v.shape()[3];
  shape.scale =
      scores.scale != 0 ? scores.scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  shape.causal = scores.causal != Causal::none;
  shape.upper_left = scores.causal == Causal::upper_left;
  shape.window = scores.window;
  shape.softcap = scores.softcap;
  shape.has_documents = scores.documents.defined();
  shape.is_block = scores.is_block;
  shape.first_query = scores.first_query;
  shape.first_key = scores.first_key;
  return shape;
}

namespace {

/// Errors: a token is neither the first one of its document nor in that of the token before it.
/// `position`: that of the first token, whose document may have begun earlier.
void check_documents(const Call& call, const Tensor& documents, std::int64_t position) {
  const std::int64_t length = documents.shape()[1];
  for (std::int64_t row = 0; row < documents.shape()[0]; ++row) {
    const std::int64_t* const first = pointer<std::int64_t>(documents) + row * length;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t own = position + i;
      const bool continues = i == 0 ? first[0] >= 0 && first[0] <= own : first[i] == first[i - 1];
      if (first[i] != own && !continues) {
        refuse(call,
               {.wrong = fmt::format("documents: token {} of row {} cannot be in the document "
                                     "that begins with token {}",
                                     own, row, first[i]),
                .expected = own == 0 ? "0"
                            : i == 0 ? fmt::format("0 to {}", own)
                                     : fmt::format("{} or {}", first[i - 1], own)});
      }
    }
  }
}

}  // namespace

kernels::AttentionShape shape_of(Workspace& w, const Call& call, const DimOrder& form,
                                 const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Scores& scores) {
  kernels::AttentionShape shape = shape_of(form, q, k, v, scores);
  if (scores.documents) {
    const Tensor documents = contiguous_operand(w, scores.documents);
    if (!w.counts()) {
      check_documents(call, documents, scores.first_query);
      shape.documents = pointer<std::int64_t>(documents);
    }
  }
  return shape;
}

Tensor rows_of_heads(Workspace& w, const Tensor& x) {
  return x.strides()[3] == 1 || x.shape()[3] == 1 ? x : contiguous_operand(w, x);
}

AttentionStrides strides_of(const DimOrder& form, const Tensor& x) {
  return {x.strides()[0], x.strides()[form.time], x.strides()[form.heads]};
}

double pair_flops(const DimOrder& form, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Scores& scores, int products) {
  const std::int64_t queries = q.shape()[form.time];
  const std::int64_t keys = k.shape()[form.time];
  // The sum over queries i of i + 1 + shift, but at least 0 and at most `keys`: the keys up to
  // that.
  const auto up_to = [&](std::int64_t shift) {
    const std::int64_t first = std::clamp<std::int64_t>(-shift, 0, queries);
    const std::int64_t last = std::clamp(keys - shift, first, queries);
    return static_cast<double>(last - first) * static_cast<double>(first + last + 1 + 2 * shift) /
               2 +
           static_cast<double>(queries - last) * static_cast<double>(keys);
  };
  auto pairs = static_cast<double>(queries) * static_cast<double>(keys);
  if (scores.causal != Causal::none) {
    const std::int64_t shift = scores.is_block ? scores.first_query - scores.first_key
                               : scores.causal == Causal::upper_left ? 0
                                                                     : keys - queries;
    pairs = up_to(shift) - (scores.window > 0 ? up_to(shift - scores.window) : 0);
  }
  const auto terms = static_cast<double>(q.shape().back() + v.shape().back());
  return pairs * static_cast<double>(q.shape()[0] * q.shape()[form.heads]) * products * terms;
}

Dims result_shape(const Tensor& q, const Tensor& v) {
  Dims shape = q.shape();
  shape.back() = v.shape().back();
  return shape;
}

void push_results(const DimOrder& form, const Tensor& q, const Tensor& v, ResultShapes& out) {
  out.push_back({result_shape(q, v), q.dtype()});
  // Logarithms of the sums of exponentials, which the backward begins with.
  out.push_back({Dims{q.shape()[0], q.shape()[form.heads], q.shape()[form.time]},
                 statistics_type(q.dtype())});
}

namespace {

Tensor transposed(const Tensor& x) { return transpose(x, -2, -1); }

/// Which scores do not count, as bool; undefined for none.
Tensor hidden_scores(const GradientCall& call, const Tensor& scores) {
  Tensor hidden;
  if (call.scores.causal != Causal::none) {
    const std::int64_t cached =
        call.scores.causal == Causal::upper_left ? 0 : scores.size(3) - scores.size(2);
    Tensor unseen = triu(ones_like(scores), cached + 1);
    if (call.scores.window > 0) {
      unseen = add(unseen, tril(ones_like(scores), cached - call.scores.window));
    }
    hidden = cast(unseen, DType::boolean);
  }
  if (const Tensor& documents = call.scores.documents) {
    const Tensor number = cumsum(ones_like(scores), 3);  // of a key, from 1
    const Tensor first = view(documents, {documents.size(0), 1, documents.size(1), 1});
    hidden = logical_or(hidden, le(number, cast(first, number.dtype())));
  }
  if (call.mask) {
    const Tensor& mask = call.mask;
    const Tensor by_mask = mask.dtype() == DType::boolean
                               ? logical_not(mask)
                               : logical_and(isinf(mask), lt(mask, zeros_like(mask)));
    hidden = hidden ? logical_or(hidden, by_mask) : by_mask;
  }
  return hidden;
}

/// P of the scaled scores, in their type.
Tensor probabilities(const GradientCall& call, Tensor scores) {
  static const Op& masked = find_op("masked_fill_backward");
  if (call.mask && call.mask.dtype() != DType::boolean) {
    scores = add(scores, cast(call.mask, scores.dtype()));
  }
  const Tensor hidden = hidden_scores(call, scores);
  // A finite number, and 0 after the softmax: a query that sees nothing has P = 0.
  const Tensor p = softmax(hidden ? masked_fill(scores, hidden, -1e30) : scores, 3);
  return hidden ? call_one(masked, {p, hidden}) : p;
}

double scale_of(const GradientCall& call) {
  return call.scores.scale != 0 ? call.scores.scale
                                : 1.0 / std::sqrt(static_cast<double>(call.q.size(3)));
}

/// Scores with a cap, tanh of what is capped (the score in units of the cap), and the cap's slope;
/// without one, the scores alone.
struct CappedScores {
  Tensor scores;
  Tensor share;
  Tensor slope;
};
CappedScores capped(const Tensor& scores, double softcap) {
  if (softcap == 0) {
    return {scores, {}, {}};
  }
  const Tensor share = tanh(mul_scalar(scores, 1 / softcap));
  return {mul_scalar(share, softcap), share, sub(ones_like(share), mul(share, share))};
}

}  // namespace

// With S = scale q k^T + mask, P = softmax(S), dP = dy v^T and dS = softmax_backward(dP, P):
//   dq = scale dS k,  dk = scale dS^T q,  dv = P^T dy,
// where dropout follows P and dP, and a cap stands between the scaled scores and the mask. Below,
// of_x is the gradient of x.
RecomputedGradients differentiate_again(const GradientCall& call, std::span<const Tensor> grads) {
  static const Op& dropout = find_op("dropout");
  const DType wide = statistics_type(call.q.dtype());
  const std::int64_t kv_heads = call.k.size(1);
  const std::int64_t group = kv_heads == 0 ? 1 : call.q.size(1) / kv_heads;
  const double scale = scale_of(call);
  const auto widened = [&](const Tensor& x) { return x ? cast(x, wide) : x; };
  /// Keys and values repeated for each query head, and back.
  const auto repeated = [&](const Tensor& x) {
    return x && group != 1 ? repeat_interleave(widened(x), group, 1) : widened(x);
  };
  const auto gathered = [&](const Tensor& x) {
    return x && group != 1 ? sum(unflatten(x, 1, {kv_heads, group}), {2}) : x;
  };
  const auto dropped = [&](const Tensor& x) {
    return call.dropout_p > 0 ? call_one(dropout, {x},
                                         random_numbers::ProbabilityArgs{.p = call.dropout_p,
                                                                         .numbers = call.numbers})
                              : x;
  };

  const Tensor q = widened(call.q);
  const Tensor k = repeated(call.k);
  const Tensor v = repeated(call.v);
  const Tensor dy = widened(call.dy);
  const auto [scores, share, slope] =
      capped(mul_scalar(matmul(q, transposed(k)), scale), call.scores.softcap);
  const auto through_cap = [&by = slope](const Tensor& x) { return by && x ? mul(x, by) : x; };
  const Tensor p = probabilities(call, scores);
  const Tensor dp = dropped(matmul(dy, transposed(v)));
  const Tensor of_capped = softmax_backward(dp, p, 3);
  const Tensor ds = through_cap(of_capped);

  RecomputedGradients of;
  Tensor of_ds, of_p, of_scores;
  const auto put = [&](Tensor& into, const Tensor& a, const Tensor& b, double by) {
    const Tensor product = matmul(a, b);
    add_to(into, by == 1 ? product : mul_scalar(product, by));
  };
  if (grads[0]) {  // of dq
    const Tensor u = widened(grads[0]);
    put(of_ds, u, transposed(k), scale);
    put(of.k, transposed(ds), u, scale);
  }
  if (grads[1]) {  // of dk
    const Tensor u = repeated(grads[1]);
    put(of_ds, q, transposed(u), scale);
    put(of.q, ds, u, scale);
  }
  if (grads.size() > 3 && grads[3]) {
    add_to(of_ds, widened(grads[3]));
  }
  if (grads[2]) {  // of dv
    const Tensor u = repeated(grads[2]);
    of_p = dropped(matmul(dy, transposed(u)));
    put(of.dy, dropped(p), u, 1);
  }
  if (of_ds && slope) {  // ds is a product with the slope, 1 - share^2
    of_scores = mul(mul_scalar(mul(share, slope), -2 / call.scores.softcap), mul(of_ds, of_capped));
    of_ds = through_cap(of_ds);
  }
  if (of_ds) {
    const Tensor of_dp = dropped(softmax_backward(of_ds, p, 3));
    put(of.dy, of_dp, v, 1);
    put(of.v, transposed(of_dp), dy, 1);
    const Tensor along = mul(of_ds, sum(mul(dp, p), {3}, true));
    add_to(of_p, sub(sub(mul(of_ds, dp), along), mul(dp, sum(mul(of_ds, p), {3}, true))));
  }
  if (of_p) {
    of.mask = softmax_backward(of_p, p, 3);
    add_to(of_scores, through_cap(of.mask));
  }
  if (of_scores) {
    put(of.q, of_scores, k, scale);
    put(of.k, transposed(of_scores), q, scale);
  }
  of.k = gathered(of.k);
  of.v = gathered(of.v);
  return of;
}

}  // namespace tessera::ops::attention
