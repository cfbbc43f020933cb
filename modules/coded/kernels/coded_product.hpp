#pragma once
// Products with weights that are codes of few bits.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::kernels {

/// How the elements of a row are coded; k is a multiple of the block of the type.
struct HalfCodes;
struct BFloat16Codes;
struct Int8Codes;  // with a scale of the row
struct Q4_0Codes;
struct Q4_1Codes;
struct Q5_0Codes;
struct Q8_0Codes;
struct Q4KCodes;
struct Q5KCodes;
struct Q6KCodes;
struct Mxfp4Codes;

/// c [m, n] = a [m, k] times the transpose of a weight [n, k].
struct CodedProduct {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const float* a = nullptr;
  const std::byte* codes = nullptr;
  std::int64_t row_bytes = 0;
  const float* scales = nullptr;  // of the weight's rows; null: they have none
  float* c = nullptr;
};

/// A product whose columns are computed some at a time.
struct CodedTask {
  CodedProduct product;
  void (*panels)(const CodedProduct& product, std::int64_t first, std::int64_t last) = nullptr;
};

/// Of which codes it has.
template <class Codes>
CodedTask coded_task(const CodedProduct& product);

/// All of them in one loop. Each element has the bits of row_gemm() with the decoded weight. A few
/// rows of the weight are decoded at a time; for few rows of `a` 16 elements, in registers.
void coded_products(std::span<const CodedTask> tasks);

/// The k elements of a row.
template <class Codes>
void decode_row(const std::byte* codes, float scale, std::int64_t k, float* to);

}  // namespace tessera::kernels
