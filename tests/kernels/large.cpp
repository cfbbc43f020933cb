// Results that are larger than the caches are written past them: the same bits as in pieces that
// are not, also where the memory is not aligned, and by several threads.

#include <array>
#include <cstring>
#include <functional>

#include "check.hpp"
#include "in_workspace.hpp"
#include "index/kernels/indexing.hpp"
#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/kernels/apply.hpp"
#include "reduce/kernels/scan.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using namespace tessera::functions;

namespace {

constexpr std::int64_t kRows = 1100;
constexpr std::int64_t kColumns = 2048;
constexpr std::int64_t kCount = kRows * kColumns;  // 9 MB of floats

/// Calls compute(y, threads' own) with memory that is aligned, and memory that is not.
void check_same(const std::vector<float>& expected, const std::function<void(float*)>& compute) {
  std::vector<float> memory(expected.size() + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  float* const aligned = memory.data() + (-address % 64) / sizeof(float);
  for (const int threads : {1, 3}) {
    for (const std::int64_t shift : {0, 1}) {
      CAPTURE(threads, shift);
      set_threads(threads);
      compute(aligned + shift);
      set_threads(1);
      CHECK(std::memcmp(aligned + shift, expected.data(), expected.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("large elementwise results have the bits of small ones", "[large]") {
  const std::int64_t count = kCount + 37;
  const auto x = values<float>(count, 1);
  const auto z = values<float>(count, 2);
  std::vector<float> expected(x.size());
  const auto in_pieces = [&](auto compute) {
    constexpr std::int64_t piece = 1 << 15;
    for (std::int64_t i = 0; i < count; i += piece) compute(i, std::min(piece, count - i));
  };
  in_pieces([&](std::int64_t i, std::int64_t size) {
    unary<Gelu>(DType::f32, size, x.data() + i, expected.data() + i);
  });
  check_same(expected, [&](float* y) { unary<Gelu>(DType::f32, count, x.data(), y); });
  in_pieces([&](std::int64_t i, std::int64_t size) {
    add(DType::f32, size, x.data() + i, z.data() + i, 0.5, expected.data() + i);
  });
  check_same(expected, [&](float* y) { add(DType::f32, count, x.data(), z.data(), 0.5, y); });
  std::vector<float> in_place = x;
  add(DType::f32, count, in_place.data(), z.data(), 0.5, in_place.data());
  CHECK(in_place == expected);
  std::vector<BFloat16> narrow(x.size());
  std::vector<BFloat16> expected_narrow(x.size());
  in_pieces([&](std::int64_t i, std::int64_t size) {
    cast(DType::f32, DType::bf16, size, x.data() + i, expected_narrow.data() + i);
  });
  cast(DType::f32, DType::bf16, count, x.data(), narrow.data());
  CHECK(std::memcmp(narrow.data(), expected_narrow.data(), narrow.size() * 2) == 0);
}

TEST_CASE("a repeated operand is scaled and added as if it were whole", "[large]") {
  const auto x = values<float>(kCount, 1);
  const auto row = values<float>(kColumns, 2);
  std::vector<float> whole(x.size());
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = row[i % kColumns];
  std::vector<float> expected(x.size());
  add(DType::f32, kCount, x.data(), whole.data(), -0.25, expected.data());
  const std::array<std::int64_t, 2> extents{kRows, kColumns};
  const std::array<std::int64_t, 2> dense{kColumns, 1};
  const std::array<std::int64_t, 2> repeated{0, 1};
  check_same(expected, [&](float* y) {
    const double scale = -0.25;
    const Operand operands[] = {{x.data(), dense}, {row.data(), repeated}};
    apply_strided(kernels_of<AddScaled, 2, 1>(), DType::f32, extents, operands, {&scale, 1}, y);
  });
}

TEST_CASE("large transposes, gathers, scans and norms have the bits of small ones", "[large]") {
  const auto x = values<float>(kCount, 1);
  std::vector<float> expected(x.size());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < kColumns; ++column) {
      expected[static_cast<std::size_t>(column * kRows + row)] =
          x[static_cast<std::size_t>(row * kColumns + column)];
    }
  }
  const std::array<std::int64_t, 2> extents{kColumns, kRows};
  const std::array<std::int64_t, 2> across{1, kColumns};
  const std::array<std::int64_t, 2> down{kRows, 1};
  check_same(expected,
             [&](float* y) { copy_strided(DType::f32, extents, x.data(), across, y, down); });

  std::vector<std::int64_t> indices(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    indices[i] = static_cast<std::int64_t>(i * 7919 % kColumns);
    expected[i] = x[i / kColumns * kColumns + static_cast<std::size_t>(indices[i])];
  }
  const IndexShape shape{kRows, kColumns, kColumns, 1};
  check_same(expected, [&](float* y) { CHECK(gather(shape, x.data(), indices.data(), y)); });
  indices[x.size() - 3] = kColumns;
  CHECK_FALSE(gather(shape, x.data(), indices.data(), expected.data()));
  indices[x.size() - 3] = -1;
  CHECK_FALSE(gather(shape, x.data(), indices.data(), expected.data()));

  const auto by_row = [&](auto compute) {
    for (std::int64_t row = 0; row < kRows; ++row)
      compute(x.data() + row * kColumns, expected.data() + row * kColumns);
  };
  for (const ScanOp op : {ScanOp::sum, ScanOp::log_sum_exp}) {
    for (const bool from_end : {false, true}) {
      by_row([&](const float* from, float* to) {
        scan(op, from_end, DType::f32, {1, kColumns, 1}, from, to);
      });
      check_same(expected, [&](float* y) {
        scan(op, from_end, DType::f32, {kRows, kColumns, 1}, x.data(), y);
      });
    }
  }
  std::vector<float> rstd(kRows);
  by_row([&](const float* from, float* to) {
    rms_norm_forward(1, kColumns, from, static_cast<const float*>(nullptr), 1e-5, to, rstd.data());
  });
  check_same(expected, [&](float* y) {
    rms_norm_forward(kRows, kColumns, x.data(), static_cast<const float*>(nullptr), 1e-5, y,
                     rstd.data());
  });
}
