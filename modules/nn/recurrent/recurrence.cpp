// Sums over all tokens before, by products of matrices of chunks of tokens. Shapes: B rows, T
// tokens, N chunks of L tokens, K heads of queries and keys of D features, H heads of values of V.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

constexpr std::int64_t longest_chunk = 64;
// With decays of each feature, products of keys are sums over their features: chunks are shorter.
constexpr std::int64_t longest_by_features = 16;

/// x with a last dim of extent 1.
Tensor column(const Tensor& x) { return ops::unsqueeze(x, -1); }
Tensor transposed(const Tensor& x) { return ops::transpose(x, -1, -2); }
/// Last entry along a dim, which stays with extent 1.
Tensor last_of(const Tensor& x, std::int64_t dim) {
  return ops::narrow(x, dim, x.size(static_cast<int>(dim)) - 1, 1);
}

/// x [B, T, H, ...] -> [B, H, N, L, ...], with zeros after the last token.
Tensor by_chunks(const Tensor& x, std::int64_t chunks, std::int64_t length) {
  const std::int64_t missing = chunks * length - x.size(1);
  Dims padding;
  for (int d = 2; d < x.dims(); ++d) {
    padding.push_back(0);
    padding.push_back(0);
  }
  padding.push_back(0);
  padding.push_back(missing);
  const Tensor padded = missing > 0 ? ops::pad(x, padding) : x;
  const Tensor cut = ops::unflatten(ops::contiguous(padded), 1, {chunks, length});
  return ops::contiguous(ops::movedim(cut, {3}, {1}));
}

/// The inverse of I + a for strictly lower triangular a [..., L, L]. The inverses of blocks along
/// the diagonal give those of blocks twice as large: [[X, 0], [-Y A X, Y]] for A below X and left
/// of Y. So no power of `a` is computed, whose elements can be far larger than the inverse's.
Tensor inverse_of_unit(const Tensor& a) {
  const std::int64_t length = a.size(-1);
  const Tensor ones = full({length}, 1, a.dtype(), a.device());
  const Tensor index = ops::add_scalar(ops::cumsum(ones, 0), -1);
  const auto blocks = [&](std::int64_t size) {  // of each row
    return ops::floor(ops::mul_scalar(index, 1.0 / static_cast<double>(size)));
  };
  const auto differences = [](const Tensor& x) {
    return ops::sub(column(x), ops::unsqueeze(x, 0));
  };
  Tensor inverse = ops::cast(ops::eq(differences(index), 0.0), a.dtype());
  for (std::int64_t size = 1; size < length; size *= 2) {
    const Tensor block = blocks(size);
    const Tensor pairs = ops::mul(ops::cast(ops::eq(differences(block), 1.0), a.dtype()),
                                  column(ops::sub(block, ops::mul_scalar(blocks(2 * size), 2))));
    const Tensor between = ops::mul(a, pairs);
    inverse = size == 1 ? ops::sub(inverse, between)
                        : ops::sub(inverse, ops::matmul(ops::matmul(inverse, between), inverse));
  }
  return inverse;
}

/// Which tokens of chunks are of one document.
struct Documents {
  explicit Documents(const Tensor& first, std::int64_t chunks, std::int64_t length, DType dtype) {
    if (!first) {
      return;
    }
    const Tensor cut = ops::select(by_chunks(ops::unsqueeze(first, 2), chunks, length), 1, 0);
    const Tensor own = ops::unsqueeze(cut, 1);  // (B, 1, N, L)
    const Tensor last = last_of(own, 3);        // (B, 1, N, 1)
    const Tensor before =
        ops::pad(ops::narrow(last, 2, 0, chunks - 1), {0, 0, 1, 0}, ops::PadMode::constant, -1);
    const auto same = [&](const Tensor& a, const Tensor& b) {
      return ops::cast(ops::eq(a, b), dtype);
    };
    pairs = same(column(own), ops::unsqueeze(own, 3));
    entering = same(own, before);
    leaving = same(own, last);
    through = same(last, before);
  }

  Tensor pairs;     // (B, 1, N, L, L); undefined, as the others: all are
  Tensor entering;  // (B, 1, N, L): with the last one of the chunk before
  Tensor leaving;   // with the last one of the chunk
  Tensor through;   // (B, 1, N, 1): the last ones of this chunk and the one before
};

Tensor masked(const Tensor& x, const Tensor& mask) { return mask ? ops::mul(x, mask) : x; }

/// What decays from token to token of a chunk.
class Decays {
 public:
  /// `steps`: [B, H, N, L], or [B, H, N, L, D].
  Decays(const Tensor& steps, Documents documents)
      : by_features_(steps.dims() == 5), documents_(std::move(documents)) {
    const Tensor sums = ops::cumsum(steps, 3);
    const Tensor after = ops::sub(last_of(sums, 3), sums);
    from_begin_ = ops::exp(sums);
    to_end_ = ops::exp(after);
    whole_ = last_of(from_begin_, 3);
    const Tensor rows = by_features_ ? transposed(sums) : sums;  // (B, H, N, D, L)
    // Above the diagonal, where factors would grow, they are 0.
    const Tensor between = ops::tril(ops::sub(column(rows), ops::unsqueeze(rows, -2)));
    between_ = ops::tril(ops::exp(between));
  }

  /// The decayed products of tokens i with j <= i: [B, H, N, L, L].
  Tensor products(const Tensor& a, const Tensor& b) const {
    if (!by_features_) {
      return masked(ops::mul(ops::matmul(a, transposed(b)), between_), documents_.pairs);
    }
    const Tensor each = ops::mul(column(transposed(a)), ops::unsqueeze(transposed(b), -2));
    return masked(ops::sum(ops::mul(each, between_), {3}), documents_.pairs);
  }
  /// x [B, H, N, L, D] with what has decayed from the chunk's begin to each token.
  Tensor from_begin(const Tensor& x) const { return times(x, from_begin_, documents_.entering); }
  /// And from each token to the chunk's end.
  Tensor to_end(const Tensor& x) const { return times(x, to_end_, documents_.leaving); }
  /// Of a chunk: [B, H, 1 or D, 1], for sums.
  Tensor whole(std::int64_t chunk) const {
    const Tensor one = masked(by_features_ ? ops::select(whole_, 3, 0) : whole_,
                              documents_.through);  // (B, H, N, 1 or D)
    return column(ops::select(one, 2, chunk));
  }

 private:
  Tensor times(const Tensor& x, const Tensor& factors, const Tensor& mask) const {
    const Tensor scaled = ops::mul(x, by_features_ ? factors : column(factors));
    return mask ? ops::mul(scaled, column(mask)) : scaled;
  }

  bool by_features_;
  Documents documents_;
  Tensor from_begin_, to_end_, whole_, between_;
};

/// The tensors of a recurrence on this rank.
RecurrenceResult local_recurrence(const RecurrenceInputs& in) {
  const DType dtype = in.decay.dtype();
  const std::int64_t tokens = in.v.size(1);
  const std::int64_t heads = in.v.size(2);
  const std::int64_t length =
      std::min(tokens, in.decay.dims() == 4 ? longest_by_features : longest_chunk);
  const std::int64_t chunks = (tokens + length - 1) / length;
  const auto cut = [&](const Tensor& x) { return by_chunks(ops::cast(x, dtype), chunks, length); };
  const auto of_value_heads = [&](const Tensor& x) {
    const std::int64_t each = heads / x.size(2);
    return cut(each > 1 ? ops::repeat_interleave(x, each, 2) : x);
  };
  const Tensor q = of_value_heads(in.q);             // (B, H, N, L, D)
  const Tensor k = of_value_heads(in.k);             // (B, H, N, L, D)
  const Tensor strength = column(cut(in.strength));  // (B, H, N, L, 1)
  Tensor values = ops::mul(cut(in.v), strength);     // (B, H, N, L, V)
  const Decays decays(cut(in.decay), Documents(in.documents, chunks, length, dtype));
  const Tensor seen = decays.products(q, k);  // (B, H, N, L, L)
  const Tensor entering_q = decays.from_begin(q);
  const Tensor leaving_k = transposed(decays.to_end(k));  // (B, H, N, D, L)
  Tensor entering_k;
  if (in.rule == RecurrentRule::delta) {
    const Tensor inverse =
        inverse_of_unit(ops::tril(ops::mul(decays.products(k, k), strength), -1));
    values = ops::matmul(inverse, values);
    entering_k = ops::matmul(inverse, ops::mul(decays.from_begin(k), strength));
  }
  Tensor sums = in.sums ? in.sums
                        : zeros({q.size(0), heads, q.size(4), values.size(4)}, dtype,
                                q.device());  // (B, H, D, V)
  std::vector<Tensor> results;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto of_chunk = [&](const Tensor& x) { return ops::select(x, 2, chunk); };
    Tensor added = of_chunk(values);
    if (entering_k) {
      added = ops::sub(added, ops::matmul(of_chunk(entering_k), sums));
    }
    results.push_back(
        ops::add(ops::matmul(of_chunk(entering_q), sums), ops::matmul(of_chunk(seen), added)));
    sums = ops::add(ops::mul(sums, decays.whole(chunk)), ops::matmul(of_chunk(leaving_k), added));
  }
  const Tensor y = ops::movedim(ops::cat(results, 2), {1}, {2});  // (B, N L, H, V)
  return {ops::contiguous(ops::narrow(y, 1, 0, tokens)), sums};
}

/// The same token by token.
RecurrenceResult recurrence_of_tokens(const RecurrenceInputs& in) {
  const DType dtype = in.decay.dtype();
  const std::int64_t heads = in.v.size(2);
  const auto of_value_heads = [&](const Tensor& x) {
    const std::int64_t each = heads / x.size(2);
    return ops::cast(each > 1 ? ops::repeat_interleave(x, each, 2) : x, dtype);
  };
  const Tensor q = of_value_heads(in.q);                          // (B, T, H, D)
  const Tensor k = of_value_heads(in.k);                          // (B, T, H, D)
  const Tensor v = ops::cast(in.v, dtype);                        // (B, T, H, V)
  const Tensor strength = column(ops::cast(in.strength, dtype));  // (B, T, H, 1)
  const Tensor factors = ops::exp(in.decay);                      // (B, T, H) or (B, T, H, D)
  Tensor sums = in.sums ? in.sums
                        : zeros({v.size(0), heads, k.size(3), v.size(3)}, dtype,
                                v.device());  // (B, H, D, V)
  std::vector<Tensor> results;
  for (std::int64_t token = 0; token < v.size(1); ++token) {
    const auto of_token = [&](const Tensor& x) { return ops::select(x, 1, token); };
    const auto row = [&](const Tensor& x) { return ops::unsqueeze(of_token(x), 2); };
    const Tensor factor = column(of_token(factors));  // (B, H, 1) or (B, H, D, 1)
    sums = ops::mul(sums, factor.dims() == 3 ? column(factor) : factor);
    Tensor added = row(v);  // (B, H, 1, V)
    if (in.rule == RecurrentRule::delta) {
      added = ops::sub(added, ops::matmul(row(k), sums));
    }
    added = ops::mul(added, row(strength));
    sums = ops::add(sums, ops::mul(column(of_token(k)), added));
    results.push_back(ops::matmul(row(q), sums));  // (B, H, 1, V)
  }
  const Tensor y = ops::transpose(ops::cat(results, 2), 1, 2);  // (B, T, H, V)
  return {ops::contiguous(y), sums};
}

/// The layout of sums [B, H, D, V] by that of values [B, T, H, V].
Layout of_sums(const Layout& values) {
  Layout layout = values;
  for (int axis = 0; axis < values.ndim(); ++axis) {
    if (values.placement(axis).is_shard(2)) {
      layout = layout.with_placement(axis, Shard(1));
    }
  }
  return layout;
}

/// The layout of a gradient: terms where the ranks share x and not what it belongs to.
Layout of_gradient(const Layout& x, const Layout& values) {
  Layout layout = x;
  for (int axis = 0; axis < x.ndim(); ++axis) {
    if (x.placement(axis).is_replicate() && values.placement(axis).is_shard()) {
      layout = layout.with_placement(axis, Partial());
    }
  }
  return layout;
}

}  // namespace

RecurrenceResult recurrence(const RecurrenceInputs& inputs) {
  const auto local = inputs.by_tokens ? recurrence_of_tokens : local_recurrence;
  if (!inputs.v.is_distributed()) {
    return local(inputs);
  }
  const Layout values = inputs.v.layout();
  const std::vector<Tensor> all = {inputs.q,        inputs.k,         inputs.v,   inputs.decay,
                                   inputs.strength, inputs.documents, inputs.sums};
  const Dims& k = inputs.k.shape();
  const Dims& v = inputs.v.shape();
  LocalMapOptions options{.out = {values, of_sums(values)},
                          .out_shapes = {v, {v[0], v[2], k[3], v[3]}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool distributed = all[i] && all[i].is_distributed();
    options.in.push_back(distributed ? all[i].layout() : Layout());
    options.in_gradients.push_back(distributed && i < 5 ? of_gradient(all[i].layout(), values)
                                                        : options.in.back());
  }
  const Tensors results = local_map(
      [&](std::span<const Tensor> x) {
        RecurrenceResult result = local({.rule = inputs.rule,
                                         .q = x[0],
                                         .k = x[1],
                                         .v = x[2],
                                         .decay = x[3],
                                         .strength = x[4],
                                         .documents = x[5],
                                         .sums = x[6]});
        return Tensors{std::move(result.y), std::move(result.sums)};
      },
      all, options);
  return {results[0], results[1]};
}

}  // namespace tessera::nn
