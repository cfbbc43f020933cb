#include "matmul/kernels/gemm.hpp"

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "check.hpp"
#include "in_workspace.hpp"
#include "matmul/kernels/integer_gemm.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

/// The products of `s` against loops in double. Operands with a batch stride of 0 have one entry.
template <class T, class Out>
double largest_error(const Gemm& s) {
  const auto stored = [&](bool transposed, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride, std::int64_t batch_stride) {
    return (s.batch == 0 ? 0 : s.batch - 1) * batch_stride +
           (transposed ? columns : rows) * stride + (transposed ? rows : columns);
  };
  const auto a = values<T>(stored(s.trans_a, s.m, s.k, s.lda, s.stride_a), 1);
  const auto b = values<T>(stored(s.trans_b, s.k, s.n, s.ldb, s.stride_b), 2);
  auto c = values<Out>(stored(false, s.m, s.n, s.ldc, s.stride_c), 3);
  auto expected = as_double(c);
  for (std::int64_t e = 0; e < s.batch; ++e) {
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j) {
        double& target = expected[static_cast<std::size_t>(e * s.stride_c + i * s.ldc + j)];
        double sum = s.accumulate ? target : 0.0;
        for (std::int64_t p = 0; p < s.k; ++p) {
          const auto at_a = e * s.stride_a + (s.trans_a ? p * s.lda + i : i * s.lda + p);
          const auto at_b = e * s.stride_b + (s.trans_b ? j * s.ldb + p : p * s.ldb + j);
          sum += static_cast<double>(a[static_cast<std::size_t>(at_a)]) *
                 static_cast<double>(b[static_cast<std::size_t>(at_b)]);
        }
        target = sum;
      }
    }
  }
  in_workspace::gemm(s, a.data(), b.data(), c.data());
  return worst(c, expected);
}

template <class T, class Out>
void check(Gemm s) {
  // Rows are stored wider than needed, entries further apart.
  s.lda = (s.trans_a ? s.m : s.k) + 3;
  s.ldb = (s.trans_b ? s.k : s.n) + 1;
  s.ldc = s.n + 2;
  s.stride_a = (s.trans_a ? s.k : s.m) * s.lda + 5;
  if (s.stride_b != 0) s.stride_b = (s.trans_b ? s.n : s.k) * s.ldb + 5;
  s.stride_c = s.m * s.ldc + 5;
  CHECK(largest_error<T, Out>(s) < tolerance<Out>());
}

void check_types(const Gemm& shape) {
  check<float, float>(shape);
  check<double, double>(shape);
  check<BFloat16, BFloat16>(shape);
  check<BFloat16, float>(shape);
  check<Half, Half>(shape);
  check<Half, float>(shape);
}

}  // namespace

TEST_CASE("gemm agrees with loops in double", "[gemm]") {
  const bool trans_a = GENERATE(false, true);
  const bool trans_b = GENERATE(false, true);
  const bool accumulate = GENERATE(false, true);
  CAPTURE(trans_a, trans_b, accumulate);
  Gemm shape;
  shape.trans_a = trans_a;
  shape.trans_b = trans_b;
  shape.accumulate = accumulate;
  for (const auto& [m, n, k, batch, stride_b] : {std::array<std::int64_t, 5>{1, 1, 1, 1, 1},
                                                 {7, 5, 3, 1, 1},
                                                 {33, 65, 17, 1, 1},
                                                 {1, 40, 70, 1, 1},
                                                 {64, 1, 32, 1, 1},
                                                 {5, 9, 13, 3, 1},
                                                 {5, 9, 13, 3, 0},
                                                 {0, 4, 4, 1, 1},
                                                 {4, 0, 4, 1, 1},
                                                 {4, 4, 0, 2, 1},
                                                 {4, 4, 4, 0, 1}}) {
    CAPTURE(m, n, k, batch, stride_b);
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.batch = batch;
    shape.stride_b = stride_b;
    check_types(shape);
  }
}

namespace {

/// How the entries of a batch are stored: one after the other with gaps, row by row beside each
/// other, one entry for all, or each one element further than the one before.
enum class Batch { apart, interleaved, shared, overlapping };

void place(Batch how, std::int64_t rows, std::int64_t columns, std::int64_t batch,
           std::int64_t& stride, std::int64_t& batch_stride) {
  stride = how == Batch::interleaved ? columns * batch : columns + 2;
  batch_stride = how == Batch::apart         ? rows * stride + 5
                 : how == Batch::interleaved ? columns
                 : how == Batch::overlapping ? 1
                                             : 0;
}

}  // namespace

// Each oneDNN has its own view of strides where an extent is 1, and refuses other strides.
TEST_CASE("gemm takes every extent with every storage of its operands", "[gemm]") {
  const std::vector<std::int64_t> extents{1, 2, 19};
  std::size_t products = 0;
  for (unsigned choice = 0; choice < 3U * 3 * 3 * 4 * 4 * 2 * 8; ++choice) {
    unsigned rest = choice;
    const auto next = [&](unsigned count) { return std::exchange(rest, rest / count) % count; };
    Gemm s;
    s.m = extents[next(3)];
    s.n = extents[next(3)];
    s.k = extents[next(3)];
    s.batch = 3;
    const auto batch_a = static_cast<Batch>(next(4));
    const auto batch_b = static_cast<Batch>(next(4));
    const auto batch_c = static_cast<Batch>(next(2));
    s.trans_a = next(2) == 1;
    s.trans_b = next(2) == 1;
    s.accumulate = next(2) == 1;
    place(batch_a, s.trans_a ? s.k : s.m, s.trans_a ? s.m : s.k, s.batch, s.lda, s.stride_a);
    place(batch_b, s.trans_b ? s.n : s.k, s.trans_b ? s.k : s.n, s.batch, s.ldb, s.stride_b);
    place(batch_c, s.m, s.n, s.batch, s.ldc, s.stride_c);
    const double error = largest_error<float, float>(s);
    if (!(error < tolerance<float>())) {
      CAPTURE(s.m, s.n, s.k, s.lda, s.stride_a, s.ldb, s.stride_b, s.ldc, s.stride_c);
      CAPTURE(s.trans_a, s.trans_b, s.accumulate);
      CHECK(error < tolerance<float>());
    }
    ++products;
  }
  CHECK(products == 6912);
}

namespace {

/// Of how many row counts below `rows` the first row has the bits that it has among all `rows`?
template <class T>
std::int64_t equal_row_counts(std::int64_t rows, std::int64_t n, std::int64_t k) {
  const auto a = values<T>(rows * k, 1);
  const auto b = values<T>(n * k, 2);
  const auto first_row = [&](std::int64_t m) {
    std::vector<T> c(static_cast<std::size_t>(m * n));
    in_workspace::gemm(Gemm{false, true, m, n, k, 1, k, 0, k, 0, n, 0, false}, a.data(), b.data(),
                       c.data());
    c.resize(static_cast<std::size_t>(n));
    return c;
  };
  const auto expected = first_row(rows);
  std::int64_t equal = 0;
  for (std::int64_t m = 1; m < rows; m *= 2) equal += first_row(m) == expected ? 1 : 0;
  return equal;
}

}  // namespace

TEST_CASE("a row of a double product does not depend on the number of rows", "[gemm]") {
  CHECK(equal_row_counts<double>(64, 96, 128) == 6);
}

TEMPLATE_TEST_CASE("integer products wrap like sums of single products", "[gemm]", std::int64_t,
                   std::int32_t, std::uint8_t) {
  using T = TestType;
  const auto [ta, tb, accumulate] =
      GENERATE(std::tuple{false, false, false}, std::tuple{true, false, true},
               std::tuple{false, true, true});
  const std::int64_t m = 5;
  const std::int64_t n = 300;  // more than one panel
  const std::int64_t k = 37;
  const Gemm shape{ta, tb, m, n, k, 2, ta ? m : k, m * k, tb ? k : n, k * n, n, m * n, accumulate};
  std::uint64_t state = 1;
  const auto numbers = [&](std::int64_t count) {
    std::vector<T> x(static_cast<std::size_t>(count));
    for (T& element : x) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      element = static_cast<T>(state >> 3U);
    }
    return x;
  };
  const auto a = numbers(2 * m * k);
  const auto b = numbers(2 * k * n);
  auto c = numbers(2 * m * n);
  auto expected = c;
  for (std::int64_t e = 0; e < 2; ++e) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        T& target = expected[static_cast<std::size_t>((e * m + i) * n + j)];
        auto sum = accumulate ? static_cast<std::uint64_t>(target) : 0;
        for (std::int64_t p = 0; p < k; ++p) {
          const auto x = a[static_cast<std::size_t>(e * m * k + (ta ? p * m + i : i * k + p))];
          const auto y = b[static_cast<std::size_t>(e * k * n + (tb ? j * k + p : p * n + j))];
          sum += static_cast<std::uint64_t>(x) * static_cast<std::uint64_t>(y);
        }
        target = static_cast<T>(sum);
      }
    }
  }
  auto threaded = c;
  in_workspace::integer_gemm(shape, a.data(), b.data(), c.data());
  CHECK(c == expected);
  set_threads(3);
  in_workspace::integer_gemm(shape, a.data(), b.data(), threaded.data());
  set_threads(1);
  CHECK(threaded == expected);
}

// What a library prepares for a product is kept for the next one of its extents, and a text of
// another length has other extents.
TEST_CASE("products of ever more extents need no more memory", "[gemm]") {
  const auto a = values<float>(8 * 4096, 1);
  const auto b = values<float>(8 * 8, 2);
  std::vector<float> c(a.size());
  const auto used_after = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t m = first; m < end; ++m) {
      in_workspace::gemm({.m = m, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8}, a.data(), b.data(),
                         c.data());
    }
    return mallinfo2().uordblks;
  };
  const auto first = used_after(1, 2);  // 0 where a sanitizer has the memory
  const auto some = used_after(2, 1300);
  const auto more = used_after(1300, 3900);
  INFO("bytes in use: " << first << ", after 1300 products " << some << ", after 3900 " << more);
  CHECK((more <= some || more - some < (some - first) / 4));
}

TEST_CASE("how many row counts give a row the same bits in oneDNN", "[.][measure]") {
  WARN("of 8 row counts (1, 2, ... 128 against 256): float k=256 "
       << equal_row_counts<float>(256, 704, 256) << ", float k=704 "
       << equal_row_counts<float>(256, 256, 704) << ", float k=4096 "
       << equal_row_counts<float>(256, 1024, 4096) << ", bfloat16 k=256 "
       << equal_row_counts<BFloat16>(256, 704, 256));
}
