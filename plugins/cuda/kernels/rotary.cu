// Rotary positions: element i of a head and element i + half are turned by position
// times frequency.
#include "kernels/rotary.hpp"
#include "kernels/row_pieces.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// The table, in f64 first.
template <class C>
__device__ void make_table(const RotaryTable& t) {
  const RotaryArguments& a = t.rotary;
  for (std::int64_t work = thread_place(); work < t.rows * a.half; work += thread_count()) {
    const std::int64_t i = work % a.half, time = work / a.half % a.times;
    const std::int64_t batch = work / a.half / a.times;
    const double frequency =
        functions::rotary_frequency<math::Of<double>>(a.frequencies, a.half, i);
    const std::int64_t position =
        a.positions.data == nullptr
            ? a.offset + time
            : static_cast<const std::int64_t*>(
                  a.positions.data)[batch * a.positions.batch + time * a.positions.time];
    const double angle = static_cast<double>(position) * frequency;
    const double amplitude = a.frequencies.amplitude;
    static_cast<C*>(t.cosines)[work] = static_cast<C>(math::cos(angle) * amplitude);
    static_cast<C*>(t.sines)[work] = static_cast<C>(a.direction * math::sin(angle) * amplitude);
  }
}

/// Heads of any type and strides; a thread has a pair of elements.
template <class C>
__device__ void turn(const RotaryTable& t) {
  const RotaryArguments& a = t.rotary;
  const std::int64_t count = a.batches * a.times * a.heads * a.half;
  for (std::int64_t work = thread_place(); work < count; work += thread_count()) {
    const std::int64_t i = work % a.half, head = work / a.half % a.heads;
    const std::int64_t time = work / a.half / a.heads % a.times;
    const std::int64_t batch = work / a.half / a.heads / a.times;
    const std::int64_t place = (batch * t.batch_rows + time) * a.half + i;
    const C cosine = static_cast<const C*>(t.cosines)[place];
    const C sine = static_cast<const C*>(t.sines)[place];
    const std::int64_t x = batch * a.x.batch + time * a.x.time + head * a.x.head + i * a.x.dim;
    const std::int64_t y = batch * a.y.batch + time * a.y.time + head * a.y.head + i * a.y.dim;
    const C first = load<C>(a.x.data, a.x.type, x);
    const C second = load<C>(a.x.data, a.x.type, x + a.half * a.x.dim);
    store(a.y.data, a.y.type, y, first * cosine - second * sine);
    store(a.y.data, a.y.type, y + a.half * a.y.dim, second * cosine + first * sine);
  }
}

/// Floats of a table beside a piece.
template <int count>
__device__ void load_floats(float (&to)[count], const void* table, std::int64_t place) {
#pragma unroll
  for (int k = 0; k < count; k += 4) {
    const auto four = load_piece<float>(static_cast<const float*>(table) + place + k);
#pragma unroll
    for (int n = 0; n < 4; ++n) to[k + n] = four.get(n);
  }
}

/// Heads of T whose halves are pieces of 16 bytes; a thread has a piece of each half, of some heads
/// of a token.
template <class T, int at_once>
__device__ void turn_heads(const RotaryTable& t) {
  constexpr int width = Piece<T>::elements;
  const RotaryArguments& a = t.rotary;
  const auto pieces = static_cast<unsigned>(a.half / width);
  const auto groups = static_cast<unsigned>((a.heads + at_once - 1) / at_once);
  const auto times = static_cast<unsigned>(a.times);
  const auto count = static_cast<unsigned>(a.batches) * times * groups * pieces;
  for (auto work = static_cast<unsigned>(thread_place()); work < count;
       work += static_cast<unsigned>(thread_count())) {
    const std::int64_t i = std::int64_t{work % pieces} * width;
    const std::int64_t first_head = std::int64_t{work / pieces % groups} * at_once;
    const unsigned token = work / pieces / groups;
    const std::int64_t time = token % times, batch = token / times;
    const T* const x = static_cast<const T*>(a.x.data) + batch * a.x.batch + time * a.x.time + i;
    T* const y = static_cast<T*>(a.y.data) + batch * a.y.batch + time * a.y.time + i;
    Piece<T> first[at_once], second[at_once];
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const T* const head = x + (first_head + n) * a.x.head;
      if (first_head + n < a.heads) {
        first[n] = load_piece<T>(head);
        second[n] = load_piece<T>(head + a.half);
      }
    }
    float cosines[width], sines[width];
    const std::int64_t place = (batch * t.batch_rows + time) * a.half + i;
    load_floats(cosines, t.cosines, place);
    load_floats(sines, t.sines, place);
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      T* const head = y + (first_head + n) * a.y.head;
      float low[width], high[width];
#pragma unroll
      for (int k = 0; k < width; ++k) {
        low[k] = first[n].get(k) * cosines[k] - second[n].get(k) * sines[k];
        high[k] = second[n].get(k) * cosines[k] + first[n].get(k) * sines[k];
      }
      if (first_head + n < a.heads) {
        store_piece<T>(head, low);
        store_piece<T>(head + a.half, high);
      }
    }
  }
}

template <class T>
__device__ void turn_pieces(const RotaryTable& t) {
  t.one_head ? turn_heads<T, 1>(t) : turn_heads<T, heads_at_once>(t);
}

}  // namespace

extern "C" {

__global__ void rotary_table_f32(const RotaryTable t) { make_table<float>(t); }
__global__ void rotary_table_f64(const RotaryTable t) { make_table<double>(t); }
__global__ void rotary_f32(const RotaryTable t) { turn<float>(t); }
__global__ void rotary_f64(const RotaryTable t) { turn<double>(t); }
__global__ void rotary_pieces_f32(const RotaryTable t) { turn_pieces<float>(t); }
__global__ void rotary_pieces_bf16(const RotaryTable t) { turn_pieces<BFloat16>(t); }
__global__ void rotary_pieces_f16(const RotaryTable t) { turn_pieces<Half>(t); }

}  // extern "C"
