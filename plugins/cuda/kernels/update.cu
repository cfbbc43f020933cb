// Steps of optimizers, for several parameters at once.
#include "kernels/rows.hpp"
#include "kernels/update.hpp"

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

}  // namespace

extern "C" {

__global__ void adam_f32(const AdamArguments a) { adam<float>(a); }
__global__ void adam_f64(const AdamArguments a) { adam<double>(a); }

}  // extern "C"
