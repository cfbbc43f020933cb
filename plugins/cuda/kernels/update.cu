// Steps of optimizers, for several parameters at once.
#include "kernels/pieces.hpp"
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

/// The gradient that a rule begins with: of a parameter p whose own gradient is g.
template <class C>
struct FirstGradient {
  C scale, decay;

  __device__ explicit FirstGradient(const functions::OwnGradient& rule)
      : scale(static_cast<C>(rule.scale)), decay(static_cast<C>(rule.decay)) {}
  __device__ C operator()(C g, C p) const { return g * scale + p * decay; }
};

template <class C>
__device__ C own_gradient(const Update& u, std::int64_t i) {
  const std::int64_t at =
      u.gradient.contiguous ? i : offset_in(u.dims, u.extents, u.gradient.strides, i);
  return load<C>(u.gradient.data, u.gradient.type, at);
}

/// Whether the parameter, its gradient of type G and its states are moved in pieces.
template <class G>
__device__ bool has_pieces(const Update& u) {
  bool all = u.gradient.contiguous && u.gradient.type == kernels::dtype_of<G> &&
             begins_piece(u.gradient.data) && begins_piece(u.parameter);
  for (void* const state : u.states) all = all && begins_piece(state);
  return all;
}

/// Pieces of a parameter: first, first + step, ... All loads of a piece come before what is done
/// with it. The number of elements that its pieces have.
template <class C, class G, class Rule>
__device__ std::int64_t update_pieces(const Update& u, const Rule& rule, std::int64_t first,
                                      std::int64_t step) {
  constexpr int n = Piece<C>::elements;
  const typename Rule::template Lanes<C> lanes(rule);
  const FirstGradient<C> begin(rule.gradient);
  const std::int64_t pieces = u.count / n;
  for (std::int64_t i = first; i < pieces; i += step) {
    const auto parameter = load_piece<C, n>(u.parameter, i * n);
    const auto gradient = load_piece<G, n>(u.gradient.data, i * n);
    Piece<C, n> state[Rule::states] = {};
#pragma unroll
    for (std::size_t k = 0; k < Rule::states; ++k) {
      if (u.states[k] != nullptr) state[k] = load_piece<C, n>(u.states[k], i * n);
    }
    C p[n], g[n], s[Rule::states][n];
    unpack(parameter, p);
    unpack(gradient, g);
#pragma unroll
    for (std::size_t k = 0; k < Rule::states; ++k) unpack(state[k], s[k]);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      C states[Rule::states];
#pragma unroll
      for (std::size_t k = 0; k < Rule::states; ++k) states[k] = s[k][e];
      lanes(p[e], begin(g[e], p[e]), states);
#pragma unroll
      for (std::size_t k = 0; k < Rule::states; ++k) s[k][e] = states[k];
    }
#pragma unroll
    for (std::size_t k = 0; k < Rule::states; ++k) {
      if (u.states[k] != nullptr) store_piece(u.states[k], i * n, pack<C>(s[k]));
    }
    store_piece(u.parameter, i * n, pack<C>(p));
  }
  return pieces * n;
}

/// The elements from number `i` on, one at a time: of any gradient.
template <class C, class Rule>
__device__ void update_elements(const Update& u, const Rule& rule, std::int64_t i,
                                std::int64_t step) {
  const typename Rule::template Lanes<C> lanes(rule);
  const FirstGradient<C> begin(rule.gradient);
  C* parameter = static_cast<C*>(u.parameter);
  for (; i < u.count; i += step) {
    C p = parameter[i];
    const C g = begin(own_gradient<C>(u, i), p);
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

/// Blocks are in the order of the parameters; a parameter has as many as blocks_for says.
template <class C, class Rule>
__device__ void update(const UpdateArguments<Rule>& a) {
  int which = 0;
  while (which + 1 < a.count && blockIdx.x >= a.updates[which + 1].first_block) ++which;
  const Update& u = a.updates[which];
  const std::int64_t blocks =
      (which + 1 < a.count ? a.updates[which + 1].first_block : gridDim.x) - u.first_block;
  const std::int64_t first = (blockIdx.x - u.first_block) * blockDim.x + threadIdx.x;
  const std::int64_t step = blocks * blockDim.x;
  std::int64_t done = 0;
  if (has_pieces<C>(u)) {
    done = update_pieces<C, C>(u, a.rule, first, step);
  } else if constexpr (std::is_same_v<C, float>) {
    if (has_pieces<BFloat16>(u)) done = update_pieces<C, BFloat16>(u, a.rule, first, step);
  }
  update_elements<C>(u, a.rule, done + first, step);
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
      lanes(p, FirstGradient<C>(a.rule.gradient)(own_gradient<C>(a.update, i), p), states);
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

/// `noise`: its lower 16 bits count.
__device__ BFloat16 rounded_by(float value, std::uint32_t noise) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  return BFloat16::from_bits(
      static_cast<std::uint16_t>(functions::stochastic_bf16(bits, noise & 0xffffU)));
}

/// AdamW in bf16. The numbers and the rounding are the CPU's.
struct RoundedAdam {
  const RoundedAdamArguments& a;
  functions::Adam::Lanes<float> lanes;
  FirstGradient<float> begin;

  __device__ explicit RoundedAdam(const RoundedAdamArguments& arguments)
      : a(arguments), lanes(a.rule), begin(a.rule.gradient) {}

  /// The random words of a place and of the other one that shares a block with it: the words 0 and
  /// 1 are the even place's, as a step's first number is a multiple of 4.
  __device__ functions::PhiloxWords words(std::int64_t place) const {
    return functions::philox_block(
        a.first_number + functions::rounding_words * static_cast<std::uint64_t>(place), a.key);
  }

  /// One element's step: p and s become what is stored. `first`, `second`: its random words.
  __device__ void step(BFloat16& p, float g, BFloat16 (&s)[functions::Adam::states],
                       std::uint32_t first, std::uint32_t second) const {
    float value = convert<float>(p);
    float states[functions::Adam::states];
#pragma unroll
    for (std::size_t k = 0; k < functions::Adam::states; ++k) states[k] = convert<float>(s[k]);
    lanes(value, begin(g, value), states);
    const std::uint32_t noise[] = {first >> 16, second, second >> 16};
    p = rounded_by(value, first);
#pragma unroll
    for (std::size_t k = 0; k < functions::Adam::states; ++k) {
      s[k] = rounded_by(states[k], noise[k]);
    }
  }

  /// Whether the elements of a piece are at consecutive places, of which the first one is even.
  __device__ bool has_pairs() const {
    const PartPlaces& places = a.places;
    const int last = places.dims - 1;
    bool all = places.first % 2 == 0;
    if (last > 0) all = all && places.extents[last] % Piece<BFloat16>::elements == 0;
    for (int d = 0; d < last; ++d) all = all && places.strides[d] % 2 == 0;
    return all;
  }

  /// A block of Philox is for two elements. The number of elements in pieces.
  template <class G>
  __device__ std::int64_t pieces() const {
    constexpr int n = Piece<BFloat16>::elements;
    constexpr std::size_t states = functions::Adam::states;
    const Update& u = a.update;
    const std::int64_t count = u.count / n;
    for (std::int64_t i = thread_place(); i < count; i += thread_count()) {
      const auto parameter = load_piece<BFloat16, n>(u.parameter, i * n);
      const auto gradient = load_piece<G, n>(u.gradient.data, i * n);
      Piece<BFloat16, n> state[states] = {};
#pragma unroll
      for (std::size_t k = 0; k < states; ++k) {
        if (u.states[k] != nullptr) state[k] = load_piece<BFloat16, n>(u.states[k], i * n);
      }
      BFloat16 p[n], s[states][n];
      float g[n];
      unpack(parameter, p);
      unpack(gradient, g);
#pragma unroll
      for (std::size_t k = 0; k < states; ++k) unpack(state[k], s[k]);
      const std::int64_t first = place_of(a.places, i * n);
#pragma unroll
      for (int e = 0; e < n; e += 2) {
        const functions::PhiloxWords random = words(first + e);
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          BFloat16 own[states];
#pragma unroll
          for (std::size_t k = 0; k < states; ++k) own[k] = s[k][e + of];
          step(p[e + of], g[e + of], own, random.word[2 * of], random.word[2 * of + 1]);
#pragma unroll
          for (std::size_t k = 0; k < states; ++k) s[k][e + of] = own[k];
        }
      }
#pragma unroll
      for (std::size_t k = 0; k < states; ++k) {
        if (u.states[k] != nullptr) store_piece(u.states[k], i * n, pack<BFloat16>(s[k]));
      }
      store_piece(u.parameter, i * n, pack<BFloat16>(p));
    }
    return count * n;
  }

  /// The elements from number `i` on, one at a time.
  __device__ void elements(std::int64_t i) const {
    const Update& u = a.update;
    auto* const parameter = static_cast<BFloat16*>(u.parameter);
    for (; i < u.count; i += thread_count()) {
      BFloat16 p = parameter[i];
      BFloat16 s[functions::Adam::states];
      for (std::size_t k = 0; k < functions::Adam::states; ++k) {
        s[k] = u.states[k] == nullptr ? BFloat16() : static_cast<BFloat16*>(u.states[k])[i];
      }
      const std::int64_t at = place_of(a.places, i);
      const functions::PhiloxWords random = words(at);
      const bool second = at % 2 != 0;
      step(p, own_gradient<float>(u, i), s, random.word[second ? 2 : 0],
           random.word[second ? 3 : 1]);
      for (std::size_t k = 0; k < functions::Adam::states; ++k) {
        if (u.states[k] != nullptr) static_cast<BFloat16*>(u.states[k])[i] = s[k];
      }
      parameter[i] = p;
    }
  }
};

__device__ void rounded_adam(const RoundedAdamArguments& a) {
  const RoundedAdam all(a);
  std::int64_t done = 0;
  if (all.has_pairs()) {
    if (has_pieces<BFloat16>(a.update)) {
      done = all.pieces<BFloat16>();
    } else if (has_pieces<float>(a.update)) {
      done = all.pieces<float>();
    }
  }
  all.elements(done + thread_place());
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

__global__ void rounded_adam_bf16(const __grid_constant__ RoundedAdamArguments a) {
  rounded_adam(a);
}
__global__ void quantized_adam_f32(const __grid_constant__ QuantizedAdamArguments a) {
  quantized_adam<float>(a);
}
__global__ void quantized_adam_f64(const __grid_constant__ QuantizedAdamArguments a) {
  quantized_adam<double>(a);
}

}  // extern "C"
