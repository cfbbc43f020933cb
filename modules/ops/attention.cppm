module;
#include <cstdint>
export module tessera.ops:attention;

import tessera.tensor;

export namespace tessera::ops {

/// Causal grouped-query attention. q [B, Tq, H, D]; k, v [B, Tk, KV, D]; query head h uses kv head
/// h * KV / H; query i sees keys <= i + Tk - Tq (a cache of keys and values stands in front). scale
/// 0: 1/sqrt(D). -> [B, Tq, H, D]. Never holds Tq x Tk scores. Sharded by batch (dim 0) or by heads
/// (dim 2, when both H and KV divide).
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale = 0);
/// Rotary embedding of x [B, T, H, D] in the halves form (first half with second half, as
/// transformers' Llama), for positions offset .. offset + T - 1.
Tensor rotary(const Tensor& x, double theta, std::int64_t offset = 0);
/// silu(gate) * up.
Tensor swiglu(const Tensor& gate, const Tensor& up);

}  // namespace tessera::ops
