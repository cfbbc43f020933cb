export module tessera.ops:attention;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

/// Causal grouped-query attention. q [B, Tq, H, D]; k, v [B, Tk, KV, D]; query head h uses kv head
/// h * KV / H; query i sees keys <= i + Tk - Tq (a cache of keys and values stands in front). scale
/// 0: 1/sqrt(D). -> [B, Tq, H, D]. Never holds Tq x Tk scores. Sharded by batch (dim 0) or by heads
/// (dim 2, when both H and KV divide).
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale = 0);
/// softmax(scale q k^T + mask) v for q [B, H, Tq, D] and k, v [B, KV, Tk, D]; query head h uses
/// key/value head h * KV / H. `mask` broadcasts to [B, H, Tq, Tk]: bool (true: is seen), or added
/// to the scores, in q's type, with a gradient. is_causal: query i sees keys <= i, for Tq = Tk.
/// A query that sees nothing gives 0. dropout_p of the probabilities are dropped: number
/// ((b H + h) Tq + i) Tk + j of the call belongs to a score in every layout; backward makes the
/// mask again. scale 0: 1/sqrt(D). Never holds all scores, but the gradient of an added mask.
/// Sharded by batch (dim 0), by heads (dim 1, when both H and KV divide), or, where not causal, by
/// queries (dim 2 of q, with k and v Replicate).
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& mask = {}, double dropout_p = 0,
                                    bool is_causal = false, double scale = 0,
                                    const RandomSource& source = by_batch_row("dropout"));
/// Rotary embedding of x [B, T, H, D] in the halves form (first half with second half, as
/// transformers' Llama), for positions offset .. offset + T - 1. Sharded by batch, by heads, or by
/// time (dim 1): each rank begins at the position at which its part does.
Tensor rotary(const Tensor& x, double theta, std::int64_t offset = 0);
/// The same for positions that are given, i64 [T] or [B, T], 0 or more: of sequences that are
/// packed together, or dealt out to the ranks in another order. Sharded by time, they are as x is.
Tensor rotary(const Tensor& x, const Tensor& positions, double theta);
/// silu(gate) * up.
Tensor swiglu(const Tensor& gate, const Tensor& up);

}  // namespace tessera::ops
