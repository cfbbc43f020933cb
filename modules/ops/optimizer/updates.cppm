export module tessera.ops:updates;

import tessera.base;
import tessera.tensor;

// An optimizer's step for lists of parameters: one call of the dispatcher for all of them, and one
// pass over each parameter. The lists have the same length; gradients and state have the shape and
// layout of their parameter. Parameters and state are written in place; the state is 0 before the
// first step. Each follows torch.optim's optimizer of that name.
//
// In all settings: gradients are multiplied by `grad_scale` first, and by -1 to `maximize`;
// `weight_decay` times the parameter is added to the gradient, or where the decay is decoupled, the
// parameter is multiplied by 1 - lr * weight_decay. The first `step` is 1: what else depends on the
// step follows from it. States that the settings do not need are lists of undefined tensors.
// Errors: lengths, shapes, types or layouts differ; a written tensor is not contiguous; a state
// that the settings need is undefined; types other than f32 parameters with f32, bf16 or f16
// gradients, and f64 with f64.
export namespace tessera::ops {

/// Tensors of a list by place: parameters, and the state of each.
using TensorList = std::span<const Tensor>;

/// p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps), with the moving averages m
/// (exp_avgs) of the gradient and v (exp_avg_sqs) of its square; with `amsgrad` the largest v so
/// far (max_exp_avg_sqs) in place of v.
struct AdamStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool amsgrad = false;
  bool maximize = false;
};
void adam_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_avg_sqs,
           TensorList max_exp_avg_sqs, const AdamStep& settings);
/// Adam with decoupled decay.
void adamw_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, TensorList max_exp_avg_sqs, const AdamStep& settings);

/// AdamStep, and which random numbers round: those of `stream` under `seed`, from 0 on, with a
/// fixed number of them for each element of the whole parameter in each step.
struct RoundedAdamStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool amsgrad = false;
  bool maximize = false;
  std::int64_t seed = 0;
  std::int64_t stream = 0;
  SpecArgument whole = {};  // of a local call: the Spec of the parameter that it has a part of
};
/// AdamW for one parameter that is rounded with random bits where it is bf16, as its state.
void adamw_rounded_(const Tensor& parameter, const Tensor& gradient, const Tensor& exp_avg,
                    const Tensor& exp_avg_sq, const Tensor& max_exp_avg_sq,
                    const RoundedAdamStep& settings);

/// Elements that share a scale in 8-bit state.
inline constexpr std::int64_t quantized_block = 256;
/// The shape of the scales of a parameter's 8-bit state: blocks are parts of rows, a row is all of
/// a parameter's dims but the first: [rows, blocks], or [blocks] of a vector.
Dims quantized_blocks(const Dims& parameter);
/// Whether every rank's shard of a parameter consists of whole blocks, so that its scales can be
/// sharded as the parameter: always along dim 0 of two or more dims.
bool has_whole_blocks(const Tensor& parameter);

/// Adam and AdamW with 8-bit state: a moment is a code (u8) for each element and a scale (f32) for
/// each block, value = map[code] * scale, where the scale is the largest magnitude of the block.
/// The maps of 256 values are those of bitsandbytes' dynamic quantisation, signed for exp_avgs and
/// unsigned for exp_avg_sqs. Codes and scales of 0 are a moment of 0. A parameter that is sharded
/// needs whole blocks. Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022.
/// Errors: as above; amsgrad; parameters that are not f32.
void adam_8bit_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
                TensorList exp_avg_scales, TensorList exp_avg_sqs, TensorList exp_avg_sq_scales,
                const AdamStep& settings);
void adamw_8bit_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
                 TensorList exp_avg_scales, TensorList exp_avg_sqs, TensorList exp_avg_sq_scales,
                 const AdamStep& settings);

/// b = momentum b + (1 - dampening) g (g at the first step); p -= lr (nesterov ? g + momentum b :
/// b). Momentum 0 needs no momentum_buffers.
struct SgdStep {
  Dynamic<double> lr = 0;
  Dynamic<double> momentum = 0;
  Dynamic<double> dampening = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool nesterov = false;
  bool maximize = false;
};
void sgd_(TensorList parameters, TensorList gradients, TensorList momentum_buffers,
          const SgdStep& settings);

/// s += g^2, from `initial` at the first step; p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) +
/// eps).
struct AdagradStep {
  Dynamic<double> lr = 0;
  Dynamic<double> lr_decay = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> initial = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool maximize = false;
};
void adagrad_(TensorList parameters, TensorList gradients, TensorList sums,
              const AdagradStep& settings);

/// v = rho v + (1 - rho) g^2; d = g sqrt(u + eps) / sqrt(v + eps); u = rho u + (1 - rho) d^2;
/// p -= lr d, with v (square_avgs) and u (acc_deltas).
struct AdadeltaStep {
  Dynamic<double> lr = 0;
  Dynamic<double> rho = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  bool maximize = false;
};
void adadelta_(TensorList parameters, TensorList gradients, TensorList square_avgs,
               TensorList acc_deltas, const AdadeltaStep& settings);

/// u = max(beta2 u, |g| + eps); p -= lr / (1 - beta1^t) m / u, with m (exp_avgs), u (exp_infs).
struct AdamaxStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool maximize = false;
};
void adamax_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_infs,
             const AdamaxStep& settings);

/// Adam with Nesterov's momentum, mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2):
/// p -= lr ((1 - mu_t) / (1 - mu_1...mu_t) g + mu_(t+1) / (1 - mu_1...mu_(t+1)) m) /
/// (sqrt(v / (1 - beta2^t)) + eps).
struct NAdamStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> momentum_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool decoupled = false;
  bool maximize = false;
};
void nadam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const NAdamStep& settings);

/// Adam whose adaptive rate is rectified; without it while the average of v is too short.
struct RAdamStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool decoupled = false;
  bool maximize = false;
};
void radam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const RAdamStep& settings);

/// v = alpha v + (1 - alpha) g^2 (square_avgs); `centered`: less the square of the gradient's
/// average (grad_avgs); d = g / (sqrt(v) + eps); b = momentum b + d (momentum_buffers), where there
/// is momentum, in place of d; p -= lr d.
struct RMSpropStep {
  Dynamic<double> lr = 0;
  Dynamic<double> alpha = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> momentum = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  bool centered = false;
  bool maximize = false;
};
void rmsprop_(TensorList parameters, TensorList gradients, TensorList square_avgs,
              TensorList momentum_buffers, TensorList grad_avgs, const RMSpropStep& settings);

/// Each element has a step size (step_sizes; lr at the first step, `smallest` to `largest`), which
/// is multiplied by `increase` where the gradient has the sign of the last one (prevs), and by
/// `decrease` where it has the other: then the element stays. p -= sign(g) size.
struct RpropStep {
  Dynamic<double> lr = 0;
  Dynamic<double> decrease = 0;
  Dynamic<double> increase = 0;
  Dynamic<double> smallest = 0;
  Dynamic<double> largest = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool maximize = false;
};
void rprop_(TensorList parameters, TensorList gradients, TensorList prevs, TensorList step_sizes,
            const RpropStep& settings);

/// Averaged SGD: eta = lr / (1 + lambd lr (t - 1))^alpha; p = p (1 - lambd eta) - eta g; the
/// average (axs) moves to p by 1 / max(1, t - 1 - t0) of the distance. Where the learning rate
/// changes, eta follows it at once (torch: one step later).
struct AsgdStep {
  Dynamic<double> lr = 0;
  Dynamic<double> lambd = 0;
  Dynamic<double> alpha = 0;
  Dynamic<double> t0 = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool maximize = false;
};
void asgd_(TensorList parameters, TensorList gradients, TensorList axs, const AsgdStep& settings);

/// p = p (1 - lr decay) - lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g
/// (exp_avgs). Source: Chen et al., 2023; torch has none.
struct LionStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  bool maximize = false;
};
void lion_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
           const LionStep& settings);

}  // namespace tessera::ops
