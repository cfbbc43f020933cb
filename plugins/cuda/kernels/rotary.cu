// Rotary positions: element i of a head and element i + half are turned by position
// times frequency.
#include "kernels/rotary.hpp"
#include "kernels/row_pieces.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Cosine and sine of pair i in a row, in f64 first.
template <class C>
struct Turn {
  C cosine, sine;
};
template <class C>
__device__ Turn<C> turn_at(const RotaryTable& t, std::int64_t row, std::int64_t i) {
  const RotaryArguments& a = t.rotary;
  const std::int64_t time = row % a.times, batch = row / a.times;
  const double frequency =
      a.half <= angles_of_block
          ? t.frequencies[i]
          : functions::rotary_frequency<math::Of<double>>(a.frequencies, a.half, i);
  const std::int64_t position =
      a.positions.data == nullptr
          ? a.offset + time
          : static_cast<const std::int64_t*>(
                a.positions.data)[batch * a.positions.batch + time * a.positions.time];
  const double angle = static_cast<double>(position) * frequency;
  const double amplitude = a.frequencies.amplitude;
  return {static_cast<C>(math::cos(angle) * amplitude),
          static_cast<C>(a.direction * math::sin(angle) * amplitude)};
}

template <class C>
__device__ void make_table(const RotaryTable& t) {
  const std::int64_t half = t.rotary.half;
  for (std::int64_t work = thread_place(); work < t.rows * half; work += thread_count()) {
    const Turn<C> turn = turn_at<C>(t, work / half, work % half);
    static_cast<C*>(t.cosines)[work] = turn.cosine;
    static_cast<C*>(t.sines)[work] = turn.sine;
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

/// Floats beside a piece.
template <int count>
__device__ void load_floats(float (&to)[count], const float* from) {
#pragma unroll
  for (int k = 0; k < count; k += 4) {
    const auto four = load_piece<float>(from + k);
#pragma unroll
    for (int n = 0; n < 4; ++n) to[k + n] = four.get(n);
  }
}

/// Pieces of both halves of heads that a thread has at once.
constexpr int turned_at_once = 4;

/// A head of a block's rows, and the step from one of a thread's heads to the next.
struct HeadPlace {
  unsigned head, batch, row;
};

/// The heads of a block's rows, in pieces of T. A thread has a piece of each half; heads come
/// first, then batches and rows.
template <class T>
struct HeadsOfBlock {
  static constexpr int width = Piece<T>::elements;
  const RotaryArguments& a;
  std::int64_t first_row;
  bool each_batch;  // rows are those of one batch
  unsigned heads, batches, rows, piece;
  HeadPlace next, step;  // the next head to load
  HeadPlace at[turned_at_once];
  Piece<T> first[turned_at_once], second[turned_at_once];

  __device__ HeadPlace place_of_head(unsigned number) const {
    const unsigned of_row = number / heads;
    return {number % heads, of_row % batches, of_row / batches};
  }

  __device__ HeadsOfBlock(const RotaryTable& t)
      : a(t.rotary),
        first_row(std::int64_t{blockIdx.x} * t.rows_of_block),
        each_batch(t.batch_rows != 0),
        heads(static_cast<unsigned>(a.heads)),
        batches(each_batch ? 1U : static_cast<unsigned>(a.batches)),
        rows(static_cast<unsigned>(t.rows_of_block)) {
    if (t.rows - first_row < rows) rows = static_cast<unsigned>(t.rows - first_row);
    const unsigned pieces = static_cast<unsigned>(a.half) / width;
    const unsigned lines = blockDim.x / pieces, line = threadIdx.x / pieces;
    piece = threadIdx.x % pieces * width;
    next = place_of_head(line);
    step = place_of_head(lines);
    if (line == lines) next.row = rows;  // a thread beside the lines
  }

  __device__ std::int64_t offset(const HeadArray& array, const HeadPlace& of) const {
    auto time = static_cast<unsigned>(first_row) + of.row;
    unsigned batch = of.batch;
    if (each_batch) {
      batch = time / static_cast<unsigned>(a.times);
      time -= batch * static_cast<unsigned>(a.times);
    }
    return batch * array.batch + time * array.time + of.head * array.head + piece;
  }

  __device__ bool exists(int n) const { return at[n].row < rows; }

  __device__ void load() {
#pragma unroll
    for (int n = 0; n < turned_at_once; ++n) {
      at[n] = next;
      if (exists(n)) {
        const T* const x = static_cast<const T*>(a.x.data) + offset(a.x, at[n]);
        first[n] = load_piece<T>(x);
        second[n] = load_piece<T>(x + a.half);
      }
      next.head += step.head;
      next.batch += step.batch;
      next.row += step.row;
      if (next.head >= heads) next.head -= heads, ++next.batch;
      if (next.batch >= batches) next.batch -= batches, ++next.row;
    }
  }

  __device__ void turn(const float* cosines, const float* sines) const {
#pragma unroll
    for (int n = 0; n < turned_at_once; ++n) {
      if (exists(n)) {
        T* const y = static_cast<T*>(a.y.data) + offset(a.y, at[n]);
        const unsigned angles = at[n].row * static_cast<unsigned>(a.half) + piece;
        float cosine[width], sine[width], low[width], high[width];
        load_floats(cosine, cosines + angles);
        load_floats(sine, sines + angles);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          low[k] = first[n].get(k) * cosine[k] - second[n].get(k) * sine[k];
          high[k] = second[n].get(k) * cosine[k] + first[n].get(k) * sine[k];
        }
        store_piece<T>(y, low);
        store_piece<T>(y + a.half, high);
      }
    }
  }
};

/// Heads of T whose halves are pieces of 16 bytes. The first ones are on their way while the block
/// makes the angles of its rows.
template <class T>
__device__ void turn_pieces(const RotaryTable& t) {
  alignas(16) __shared__ float cosines[angles_of_block];
  alignas(16) __shared__ float sines[angles_of_block];
  HeadsOfBlock<T> block(t);
  block.load();
  const auto half = static_cast<unsigned>(t.rotary.half);
  const unsigned row = threadIdx.x / half;
  if (row < block.rows) {
    const Turn<float> turn = turn_at<float>(t, block.first_row + row, threadIdx.x % half);
    cosines[threadIdx.x] = turn.cosine;
    sines[threadIdx.x] = turn.sine;
  }
  __syncthreads();
  while (block.exists(0)) {
    block.turn(cosines, sines);
    block.load();
  }
}

}  // namespace

extern "C" {

__global__ void rotary_table_f32(const __grid_constant__ RotaryTable t) { make_table<float>(t); }
__global__ void rotary_table_f64(const __grid_constant__ RotaryTable t) { make_table<double>(t); }
__global__ void rotary_f32(const __grid_constant__ RotaryTable t) { turn<float>(t); }
__global__ void rotary_f64(const __grid_constant__ RotaryTable t) { turn<double>(t); }
__global__ void rotary_pieces_f32(const __grid_constant__ RotaryTable t) { turn_pieces<float>(t); }
__global__ void rotary_pieces_bf16(const __grid_constant__ RotaryTable t) {
  turn_pieces<BFloat16>(t);
}
__global__ void rotary_pieces_f16(const __grid_constant__ RotaryTable t) { turn_pieces<Half>(t); }

}  // extern "C"
