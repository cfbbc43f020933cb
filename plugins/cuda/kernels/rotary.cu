// Rotary positions: element i of a head and element i + half are turned by position
// times frequency.
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

template <class C>
__device__ void rotary(const RotaryArguments& a) {
  const std::int64_t count = a.batches * a.times * a.heads * a.half;
  for (std::int64_t work = thread_place(); work < count; work += thread_count()) {
    const std::int64_t i = work % a.half, head = work / a.half % a.heads;
    const std::int64_t time = work / a.half / a.heads % a.times;
    const std::int64_t batch = work / a.half / a.heads / a.times;
    const double frequency =
        functions::rotary_frequency<math::Of<double>>(a.frequencies, a.half, i);
    const std::int64_t position =
        a.positions.data == nullptr
            ? a.offset + time
            : static_cast<const std::int64_t*>(
                  a.positions.data)[batch * a.positions.batch + time * a.positions.time];
    const double angle = static_cast<double>(position) * frequency;
    const double amplitude = a.frequencies.amplitude;
    const C cosine = static_cast<C>(math::cos(angle) * amplitude);
    const C sine = static_cast<C>(a.direction * math::sin(angle) * amplitude);
    const std::int64_t x = batch * a.x.batch + time * a.x.time + head * a.x.head + i * a.x.dim;
    const std::int64_t y = batch * a.y.batch + time * a.y.time + head * a.y.head + i * a.y.dim;
    const C first = load<C>(a.x.data, a.x.type, x);
    const C second = load<C>(a.x.data, a.x.type, x + a.half * a.x.dim);
    store(a.y.data, a.y.type, y, first * cosine - second * sine);
    store(a.y.data, a.y.type, y + a.half * a.y.dim, second * cosine + first * sine);
  }
}

}  // namespace

extern "C" {

__global__ void rotary_f32(const RotaryArguments a) { rotary<float>(a); }
__global__ void rotary_f64(const RotaryArguments a) { rotary<double>(a); }

}  // extern "C"
