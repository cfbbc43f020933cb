#pragma once
// One pass over the flat arrays of an optimizer's step: the skeleton of all rules. Include from
// .cpp files only.

#include <array>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/vector_math.hpp"
#include "update.hpp"

namespace tessera::kernels {

template <class Rule, class C, class Gradient>
void update_lanes(const Rule& rule, std::int64_t count, C* parameter, const Gradient* gradient,
                  const std::array<C*, Rule::states>& states) {
  constexpr std::int64_t kGrain = 1 << 15;
  const auto scale = static_cast<C>(rule.gradient.scale);
  const auto decay = static_cast<C>(rule.gradient.decay);
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      const typename Rule::template Lanes<C> lanes(rule);
      for (std::int64_t i = begin; i < end; i += simd::kLanes<C>) {
        const std::int64_t rest = end - i;
        auto p = simd::load_some(parameter + i, rest);
        const auto g = simd::load_some(gradient + i, rest) * scale + p * decay;
        simd::Vector<C> s[Rule::states];
        for (std::size_t k = 0; k < Rule::states; ++k) {
          s[k] = states[k] == nullptr ? simd::Vector<C>{} : simd::load_some(states[k] + i, rest);
        }
        lanes(p, g, s);
        for (std::size_t k = 0; k < Rule::states; ++k) {
          if (states[k] != nullptr) {
            simd::store_some(states[k] + i, rest, s[k]);
          }
        }
        simd::store_some(parameter + i, rest, p);
      }
    });
  });
}

/// Calls f with values of the C++ types of the parameter and of the gradient; false where these are
/// not f32 with f32, bf16 or f16, or f64 with f64.
template <class F>
bool visit_update_types(DType parameter_type, DType gradient_type, F f) {
  bool known = true;
  const auto unknown = [&] { known = false; };
  const auto with_parameter = [&]<class C>(C c) {
    using Gradients =
        std::conditional_t<std::is_same_v<C, double>, Types<double>, Types<float, BFloat16, Half>>;
    visit<Gradients>(gradient_type, [&](auto g) { f(c, g); }, unknown);
  };
  visit<Types<float, double>>(parameter_type, with_parameter, unknown);
  return known;
}

template <class Rule>
bool update(const Rule& rule, DType parameter_type, DType gradient_type, std::int64_t count,
            void* parameter, const void* gradient, void* const* states) {
  return visit_update_types(parameter_type, gradient_type, [&]<class C, class G>(C, G) {
    std::array<C*, Rule::states> arrays;
    for (std::size_t k = 0; k < Rule::states; ++k) {
      arrays[k] = static_cast<C*>(states[k]);
    }
    update_lanes(rule, count, static_cast<C*>(parameter), static_cast<const G*>(gradient), arrays);
  });
}

}  // namespace tessera::kernels
