// Steps of optimizers, for several parameters at once.
#include "kernels/rows.hpp"
#include "kernels/update.hpp"
#include "optimizer/functions/rounding.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Blocks are in the order of the parameters; a parameter has as many as blocks_for says.
template <class C>
__device__ void adam(const AdamArguments& a) {
  int which = 0;
  while (which + 1 < a.count && blockIdx.x >= a.updates[which + 1].first_block) ++which;
  const Update& u = a.updates[which];
  const std::int64_t blocks =
      (which + 1 < a.count ? a.updates[which + 1].first_block : gridDim.x) - u.first_block;
  const functions::Adam::Lanes<C> lanes(a.rule);
  const C scale = static_cast<C>(a.rule.gradient.scale);
  const C decay = static_cast<C>(a.rule.gradient.decay);
  C* parameter = static_cast<C*>(u.parameter);
  for (std::int64_t i = (blockIdx.x - u.first_block) * blockDim.x + threadIdx.x; i < u.count;
       i += blocks * blockDim.x) {
    const std::int64_t at =
        u.gradient.contiguous ? i : offset_in(u.dims, u.extents, u.gradient.strides, i);
    C p = parameter[i];
    const C g = load<C>(u.gradient.data, u.gradient.type, at) * scale + p * decay;
    C states[functions::Adam::states];
    for (std::size_t k = 0; k < functions::Adam::states; ++k) {
      states[k] = u.states[k] == nullptr ? C{} : static_cast<C*>(u.states[k])[i];
    }
    lanes(p, g, states);
    for (std::size_t k = 0; k < functions::Adam::states; ++k) {
      if (u.states[k] != nullptr) static_cast<C*>(u.states[k])[i] = states[k];
    }
    parameter[i] = p;
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
  const auto scale = static_cast<float>(a.rule.gradient.scale);
  const auto decay = static_cast<float>(a.rule.gradient.decay);
  auto* const parameter = static_cast<BFloat16*>(u.parameter);
  for (std::int64_t i = thread_place(); i < u.count; i += thread_count()) {
    const std::int64_t at =
        u.gradient.contiguous ? i : offset_in(u.dims, u.extents, u.gradient.strides, i);
    float p = widened(parameter[i]);
    const float g = load<float>(u.gradient.data, u.gradient.type, at) * scale + p * decay;
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

extern "C" {

__global__ void adam_f32(const AdamArguments a) { adam<float>(a); }
__global__ void adam_f64(const AdamArguments a) { adam<double>(a); }
__global__ void rounded_adam_bf16(const RoundedAdamArguments a) { rounded_adam(a); }

}  // extern "C"
