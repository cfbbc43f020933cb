#pragma once
// Rows that are rounded to codes of 8 bits (integer_product.hpp). For sources of this folder only.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "integer_product.hpp"

namespace tessera::kernels {

namespace integers {
inline constexpr std::int64_t kQuads = kRoundedElements / 4;
}

/// Rows of x in codes.
struct RoundedRows {
  std::int64_t m;
  std::int64_t units;              // of a row
  bool signed8;                    // see below
  std::vector<std::int32_t> even;  // [m, units, 8] four codes of 8 bits; else their first and third
  std::vector<std::int32_t> odd;   // with 16 bits, and here their second and fourth
  std::vector<float> scale;        // [m, units]
  std::vector<float> sum;          // [m, units] of the codes, times the scale
  std::vector<std::int32_t> halves;  // [m, units, 2] the sums of 16 codes

  RoundedRows(std::int64_t rows, std::int64_t k, bool as_signed8)
      : m(rows), units((k + kRoundedElements - 1) / kRoundedElements), signed8(as_signed8) {
    const auto count = static_cast<std::size_t>(m * units);
    even.resize(count * integers::kQuads);
    odd.resize(signed8 ? 0 : count * integers::kQuads);
    scale.resize(count);
    sum.resize(count);
    halves.resize(count * 2);
  }
};

/// Rounds x [m, k]; signed8: for a machine that multiplies unsigned bytes with signed ones.
RoundedRows rounded_rows(const float* x, std::int64_t m, std::int64_t k, bool signed8);

}  // namespace tessera::kernels
