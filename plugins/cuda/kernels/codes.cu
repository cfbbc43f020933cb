// Weights and activations in codes.
#include <tessera/nf4.hpp>

#include "kernels/codes.hpp"
#include "kernels/elements.hpp"
#include "kernels/rows.hpp"
#include "pointwise/functions/quantize.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

struct Levels {
  float of[16];
};
/// The format's levels, in constant memory.
constexpr Levels nf4_levels() {
  Levels all = {};
  for (int code = 0; code < 16; ++code) all.of[code] = kernels::nf4::levels[code];
  return all;
}
__constant__ Levels levels = nf4_levels();

/// Calls body(row, part) for the parts of rows that this block has.
template <class Body>
__device__ void each_part(const QuantizeArguments& a, Body body) {
  for (std::int64_t work = blockIdx.x; work < a.rows.rows * a.parts; work += gridDim.x) {
    body(work / a.parts, work % a.parts);
  }
}

/// Calls body(i) for the elements of a part of a row that this thread has.
template <class Body>
__device__ void each_of_part(const QuantizeArguments& a, std::int64_t part, Body body) {
  const std::int64_t begin = a.rows.length * part / a.parts;
  const std::int64_t end = a.rows.length * (part + 1) / a.parts;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) body(i);
}

}  // namespace

extern "C" {

/// Magnitudes are in the order of their bits, and NaN's are the largest.
__global__ void largest_magnitudes(const QuantizeArguments a) {
  each_part(a, [&](std::int64_t row, std::int64_t part) {
    const Row<float> x(a.rows, 0, row);
    std::uint32_t most = 0;
    each_of_part(a, part, [&](std::int64_t i) {
      most = Larger{}(most, __builtin_bit_cast(std::uint32_t, x.get(i)) & 0x7fffffffU);
    });
    most = join_block(most, 0U, Larger{});
    if (threadIdx.x == 0) a.largest[row * a.parts + part] = most;
  });
}

__global__ void scales_of_rows(const QuantizeArguments a) {
  each_element(a.rows.rows, [&](std::int64_t row) {
    std::uint32_t most = 0;
    for (std::int64_t part = 0; a.given == nullptr && part < a.parts; ++part) {
      most = Larger{}(most, a.largest[row * a.parts + part]);
    }
    const float scale = a.given != nullptr ? *a.given
                                           : functions::scale_for(__builtin_bit_cast(float, most),
                                                                  a.most, a.powers_of_two);
    a.scales[row] = scale;
    Row<float>(a.rows, 2, row).set(0, 1 / scale);
  });
}

__global__ void quantize_rows(const QuantizeArguments a) {
  each_part(a, [&](std::int64_t row, std::int64_t part) {
    const Row<float> x(a.rows, 0, row), codes(a.rows, 1, row);
    const float scale = a.scales[row];
    each_of_part(a, part, [&](std::int64_t i) {
      codes.set(i, functions::scaled_and_cut(x.get(i), scale, a.most));
    });
  });
}

/// Bits of the CPU: a quotient, a sum, a product.
__global__ void nf4_values(const Nf4Arguments a) {
  namespace nf4 = kernels::nf4;
  each_element(a.rows * a.columns, [&](std::int64_t i) {
    const std::int64_t row = i / a.columns, column = i % a.columns;
    const std::int64_t block = column / nf4::block_size;
    const std::int64_t place = a.first_block + row * a.row_blocks + block;
    const float scale =
        nf4::scale_of(a.scales[row * a.scales_strides[0] + block * a.scales_strides[1]],
                      a.factors[place / nf4::scale_block_size * a.factors_stride], *a.mean);
    const unsigned both = a.codes[row * a.codes_strides[0] + column / 2 * a.codes_strides[1]];
    const unsigned code = column % 2 == 0 ? both / 16 : both % 16;
    a.y[row * a.y_strides[0] + column * a.y_strides[1]] = levels.of[code] * scale;
  });
}

}  // extern "C"
