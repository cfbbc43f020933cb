#include "adamw.hpp"

#include <cmath>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

using simd::load_some;
using simd::store_some;

constexpr std::int64_t kGrain = 1 << 15;

}  // namespace

template <class C, class Gradient>
void adamw(const AdamW& options, std::int64_t count, C* parameter, const Gradient* gradient,
           C* exp_avg, C* exp_avg_sq) {
  const auto decay = static_cast<C>(1.0 - options.learning_rate * options.weight_decay);
  const auto beta1 = static_cast<C>(1.0 - options.beta1);  // as torch: m += (g - m) (1 - beta1)
  const auto beta2 = static_cast<C>(options.beta2);
  const auto beta2_rest = static_cast<C>(1.0 - options.beta2);
  const auto step_size = static_cast<C>(options.learning_rate / options.correction1);
  const auto root_factor = static_cast<C>(1.0 / std::sqrt(options.correction2));
  const auto eps = static_cast<C>(options.eps);
  const auto scale = static_cast<C>(options.grad_scale);
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t i = begin; i < end; i += simd::kLanes<C>) {
        const std::int64_t rest = end - i;
        const auto g = load_some(gradient + i, rest) * scale;
        const auto before = load_some(exp_avg + i, rest);
        const auto m = before + (g - before) * beta1;
        const auto v = load_some(exp_avg_sq + i, rest) * beta2 + g * g * beta2_rest;
        const auto denominator = simd::sqrt(v) * root_factor + eps;
        const auto p = load_some(parameter + i, rest) * decay - m * step_size / denominator;
        store_some(exp_avg + i, rest, m);
        store_some(exp_avg_sq + i, rest, v);
        store_some(parameter + i, rest, p);
      }
    });
  });
}

template <class C, class Gradient>
void sgd(const Sgd& options, std::int64_t count, C* parameter, const Gradient* gradient,
         C* momentum_buffer) {
  const auto rate = static_cast<C>(options.learning_rate);
  const auto momentum = static_cast<C>(options.momentum);
  const auto decay = static_cast<C>(options.weight_decay);
  const auto scale = static_cast<C>(options.grad_scale);
  const bool buffered = momentum_buffer != nullptr && options.momentum != 0.0;
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t i = begin; i < end; i += simd::kLanes<C>) {
        const std::int64_t rest = end - i;
        const auto p = load_some(parameter + i, rest);
        const auto g = load_some(gradient + i, rest) * scale + p * decay;
        auto update = g;
        if (buffered) {
          const auto b =
              options.first_step ? g : load_some(momentum_buffer + i, rest) * momentum + g;
          store_some(momentum_buffer + i, rest, b);
          update = options.nesterov ? g + b * momentum : b;
        }
        store_some(parameter + i, rest, p - update * rate);
      }
    });
  });
}

template decltype(adamw<float, float>) adamw<float, float>;
template decltype(adamw<double, double>) adamw<double, double>;
template decltype(adamw<float, BFloat16>) adamw<float, BFloat16>;
template decltype(adamw<float, Half>) adamw<float, Half>;
template decltype(sgd<float, float>) sgd<float, float>;
template decltype(sgd<double, double>) sgd<double, double>;
template decltype(sgd<float, BFloat16>) sgd<float, BFloat16>;
template decltype(sgd<float, Half>) sgd<float, Half>;

}  // namespace tessera::kernels
