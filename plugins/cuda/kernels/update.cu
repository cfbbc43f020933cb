// Steps of optimizers, for several parameters at once.
#include "kernels/rows.hpp"
#include "kernels/update.hpp"
#include "optimizer/functions/adadelta.hpp"
#include "optimizer/functions/adagrad.hpp"
#include "optimizer/functions/adamax.hpp"
#include "optimizer/functions/asgd.hpp"
#include "optimizer/functions/lion.hpp"
#include "optimizer/functions/nadam.hpp"
#include "optimizer/functions/radam.hpp"
#include "optimizer/functions/rmsprop.hpp"
#include "optimizer/functions/rounding.hpp"
#include "optimizer/functions/rprop.hpp"
#include "optimizer/functions/sgd.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// The gradient that a rule begins with, of the element number i, which is p.
template <class C>
__device__ C own_gradient(const Update& u, const functions::OwnGradient& rule, std::int64_t i,
                          C p) {
  const std::int64_t at =
      u.gradient.contiguous ? i : offset_in(u.dims, u.extents, u.gradient.strides, i);
  return load<C>(u.gradient.data, u.gradient.type, at) * static_cast<C>(rule.scale) +
         p * static_cast<C>(rule.decay);
}

/// Blocks are in the order of the parameters; a parameter has as many as blocks_for says.
template <class C, class Rule>
__device__ void update(const UpdateArguments<Rule>& a) {
  int which = 0;
  while (which + 1 < a.count && blockIdx.x >= a.updates[which + 1].first_block) ++which;
  const Update& u = a.updates[which];
  const std::int64_t blocks =
      (which + 1 < a.count ? a.updates[which + 1].first_block : gridDim.x) - u.first_block;
  const typename Rule::template Lanes<C> lanes(a.rule);
  C* parameter = static_cast<C*>(u.parameter);
  for (std::int64_t i = (blockIdx.x - u.first_block) * blockDim.x + threadIdx.x; i < u.count;
       i += blocks * blockDim.x) {
    C p = parameter[i];
    const C g = own_gradient(u, a.rule.gradient, i, p);
    C states[Rule::states];
    for (std::size_t k = 0; k < Rule::states; ++k) {
      states[k] = u.states[k] == nullptr ? C{} : static_cast<C*>(u.states[k])[i];
    }
    lanes(p, g, states);
    for (std::size_t k = 0; k < Rule::states; ++k) {
      if (u.states[k] != nullptr) static_cast<C*>(u.states[k])[i] = states[k];
    }
    parameter[i] = p;
  }
}

/// The code whose value is nearest to a share of the scale.
__device__ std::uint8_t nearest_code(const float* values, float share) {
  unsigned code = 0;
  for (unsigned by = 128; by > 0; by /= 2) {
    const float* const pair = values + code + by - 1;
    if (functions::border_between(pair[0], pair[1]) < share) code += by;
  }
  return static_cast<std::uint8_t>(code);
}

/// A block of threads has a block of a row at a time, a thread an element of it.
template <class C>
__device__ void quantized_adam(const QuantizedAdamArguments& a) {
  const functions::Adam::Lanes<C> lanes(a.rule);
  for (std::int64_t block = blockIdx.x; block < a.all_blocks; block += gridDim.x) {
    const std::int64_t place = block % a.blocks * functions::quantized_block + threadIdx.x;
    const bool exists = place < a.row;
    const std::int64_t i = block / a.blocks * a.row + place;
    C states[functions::Adam::states] = {};
    if (exists) {
      for (int k = 0; k < 2; ++k) {
        states[k] =
            static_cast<C>(a.values[k][a.codes[k][i]]) * static_cast<C*>(a.scales[k])[block];
      }
      C& parameter = static_cast<C*>(a.update.parameter)[i];
      C p = parameter;
      lanes(p, own_gradient(a.update, a.rule.gradient, i, p), states);
      parameter = p;
    }
    for (int k = 0; k < 2; ++k) {
      const C magnitude = states[k] < 0 ? -states[k] : states[k];
      const C scale =
          join_block(magnitude, C{}, NanMaximum{});  // all threads have read the last one
      if (threadIdx.x == 0) static_cast<C*>(a.scales[k])[block] = scale;
      const C factor = scale > 0 ? 1 / scale : C{};
      if (exists) {
        a.codes[k][i] = nearest_code(a.values[k], static_cast<float>(states[k] * factor));
      }
    }
  }
}

__device__ float widened(const BFloat16& x) { return static_cast<float>(x); }

/// `noise`: its lower 16 bits count.
__device__ void store_rounded(BFloat16& to, float value, std::uint32_t noise) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  to = BFloat16::from_bits(
      static_cast<std::uint16_t>(functions::stochastic_bf16(bits, noise & 0xffffU)));
}

/// The numbers and the rounding are the CPU's.
__device__ void rounded_adam(const RoundedAdamArguments& a) {
  const Update& u = a.update;
  const functions::Adam::Lanes<float> lanes(a.rule);
  auto* const parameter = static_cast<BFloat16*>(u.parameter);
  for (std::int64_t i = thread_place(); i < u.count; i += thread_count()) {
    float p = widened(parameter[i]);
    const float g = own_gradient(u, a.rule.gradient, i, p);
    float states[functions::Adam::states];
    for (std::size_t k = 0; k < functions::Adam::states; ++k) {
      states[k] = u.states[k] == nullptr ? 0.0F : widened(static_cast<BFloat16*>(u.states[k])[i]);
    }
    lanes(p, g, states);
    const std::int64_t place = a.first_place + offset_in(a.dims, a.part, a.places, i);
    const std::uint64_t number =
        a.first_number + functions::rounding_words * static_cast<std::uint64_t>(place);
    const functions::PhiloxWords words = functions::philox_block(number, a.key);
    const std::uint32_t first = words.word[number % 4];
    const std::uint32_t second = words.word[number % 4 + 1];  // numbers are even
    const std::uint32_t noise[] = {first >> 16, second, second >> 16};
    store_rounded(parameter[i], p, first);
    for (std::size_t k = 0; k < functions::Adam::states; ++k) {
      if (u.states[k] != nullptr) {
        store_rounded(static_cast<BFloat16*>(u.states[k])[i], states[k], noise[k]);
      }
    }
  }
}

}  // namespace

// Kernels update_RULE_f32 and ..._f64, by the name of the rule's structure (update.cpp).
#define UPDATE(RULE)                                                \
  extern "C" __global__ void update_##RULE##_f32(                   \
      const __grid_constant__ UpdateArguments<functions::RULE> a) { \
    update<float>(a);                                               \
  }                                                                 \
  extern "C" __global__ void update_##RULE##_f64(                   \
      const __grid_constant__ UpdateArguments<functions::RULE> a) { \
    update<double>(a);                                              \
  }

UPDATE(Adadelta)
UPDATE(Adagrad)
UPDATE(Adam)
UPDATE(Adamax)
UPDATE(Asgd)
UPDATE(Lion)
UPDATE(NAdam)
UPDATE(RAdam)
UPDATE(RMSprop)
UPDATE(Rprop)
UPDATE(Sgd)

extern "C" {

__global__ void rounded_adam_bf16(const RoundedAdamArguments a) { rounded_adam(a); }
__global__ void quantized_adam_f32(const __grid_constant__ QuantizedAdamArguments a) {
  quantized_adam<float>(a);
}
__global__ void quantized_adam_f64(const __grid_constant__ QuantizedAdamArguments a) {
  quantized_adam<double>(a);
}

}  // extern "C"
