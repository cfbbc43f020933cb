#include "scaled.hpp"

#include <algorithm>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements

}  // namespace

void repeat_factors(int dims, const float* factors, const std::int64_t* extents,
                    const std::int64_t* shape, const std::int64_t* whole, float* out) {
  std::int64_t count = 1;
  for (int d = 0; d < dims; ++d) count *= shape[d];
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t at = 0;
    std::int64_t stride = 1;
    for (int d = dims - 1; extents != nullptr && d >= 0; --d) {
      const std::int64_t place = rest % shape[d];
      const std::int64_t block =
          (whole[d] + extents[d] - 1) / std::max<std::int64_t>(1, extents[d]);
      at += place / std::max<std::int64_t>(1, block) * stride;
      stride *= extents[d];
      rest /= shape[d];
    }
    out[i] = factors[at];
  }
}

void multiply(std::int64_t count, float* x, const float* y) {
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x[i] *= y[i];
  });
}

void scale_product(std::int64_t rows, std::int64_t columns, float* x, const float* of_rows,
                   const float* of_columns) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, columns));
  parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        float* const to = x + row * columns;
        const float own = of_rows[row];
        for (std::int64_t i = 0; i < columns; ++i) to[i] *= own * of_columns[i];
      }
    });
  });
}

}  // namespace tessera::kernels
