#include "matmul/kernels/grouped_gemm.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "in_workspace.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

using Counts = std::vector<std::int64_t>;

template <class T>
double at(const std::vector<T>& x, std::int64_t i) {
  return static_cast<double>(x[static_cast<std::size_t>(i)]);
}

/// The rows of each group times its matrix, against loops in double; rows of no group are 0.
template <class T>
std::vector<T> check_gemm(const Counts& counts, std::int64_t rows, std::int64_t n, std::int64_t k,
                          bool trans_b) {
  GroupedGemm s;
  s.groups = static_cast<std::int64_t>(counts.size());
  s.rows = rows;
  s.n = n;
  s.k = k;
  s.trans_b = trans_b;
  s.lda = k + 3;
  s.ldb = (trans_b ? k : n) + 1;
  s.stride_b = (trans_b ? n : k) * s.ldb + 5;
  const auto a = values<T>(rows * s.lda, 1);
  const auto b = values<T>(s.groups * s.stride_b, 2);
  std::vector<double> expected(static_cast<std::size_t>(rows * n), 0.0);
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < s.groups; ++g) {
    for (const std::int64_t end = row + counts[static_cast<std::size_t>(g)]; row < end; ++row) {
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t p = 0; p < k; ++p) {
          expected[static_cast<std::size_t>(row * n + j)] +=
              at(a, row * s.lda + p) *
              at(b, g * s.stride_b + (trans_b ? j * s.ldb + p : p * s.ldb + j));
        }
      }
    }
  }
  auto c = values<T>(rows * n, 3);
  in_workspace::grouped_gemm(s, counts.data(), a.data(), b.data(), c.data());
  CHECK(worst(c, expected) < tolerance<T>());
  return c;
}

/// The sum over each group's rows of a row of A times a row of B, against loops in double.
template <class T>
std::vector<T> check_outer(const Counts& counts, std::int64_t rows, std::int64_t m,
                           std::int64_t n) {
  const GroupedOuter s{.groups = static_cast<std::int64_t>(counts.size()),
                       .rows = rows,
                       .m = m,
                       .n = n,
                       .lda = m + 2,
                       .ldb = n + 1};
  const auto a = values<T>(rows * s.lda, 1);
  const auto b = values<T>(rows * s.ldb, 2);
  std::vector<double> expected(static_cast<std::size_t>(s.groups * m * n), 0.0);
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < s.groups; ++g) {
    for (const std::int64_t end = row + counts[static_cast<std::size_t>(g)]; row < end; ++row) {
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          expected[static_cast<std::size_t>((g * m + i) * n + j)] +=
              at(a, row * s.lda + i) * at(b, row * s.ldb + j);
        }
      }
    }
  }
  auto c = values<T>(s.groups * m * n, 3);
  in_workspace::grouped_outer(s, counts.data(), a.data(), b.data(), c.data());
  CHECK(worst(c, expected) < tolerance<T>());
  return c;
}

void check_types(const Counts& counts, std::int64_t rows, std::int64_t n, std::int64_t k) {
  for (const bool trans_b : {false, true}) {
    check_gemm<float>(counts, rows, n, k, trans_b);
    check_gemm<double>(counts, rows, n, k, trans_b);
    check_gemm<BFloat16>(counts, rows, n, k, trans_b);
    check_gemm<Half>(counts, rows, n, k, trans_b);
  }
  check_outer<float>(counts, rows, k, n);
  check_outer<double>(counts, rows, k, n);
  check_outer<BFloat16>(counts, rows, k, n);
  check_outer<Half>(counts, rows, k, n);
}

}  // namespace

TEST_CASE("grouped products agree with loops in double", "[grouped]") {
  set_threads(GENERATE(1, 2, 3));
  check_types({2, 3, 1}, 6, 7, 5);
  check_types({0, 4, 0, 0, 2, 0}, 9, 5, 3);  // groups without rows, rows without a group
  check_types({0, 0}, 4, 3, 2);
  check_types({}, 4, 3, 2);
  check_types({5}, 5, 1, 1);
  check_types({1, 9}, 10, 1, 17);
  check_types({3, 4}, 7, 17, 1);
  check_types({2, 2}, 4, 3, 0);
  check_types({2, 2}, 4, 0, 3);
  check_types({}, 0, 4, 3);
  check_types({128, 129, 1, 127, 7, 8}, 405, 19, 131);  // whole tiles and parts of tiles
  check_types({257, 0, 300}, 600, 33, 9);
  set_threads(1);
}

TEST_CASE(
    "grouped products have the same bits with any number of threads, wherever a group's rows are",
    "[grouped]") {
  const Counts counts{200, 3, 0, 130};
  set_threads(1);
  const auto product = check_gemm<float>(counts, 340, 70, 40, true);
  const auto sums = check_outer<float>(counts, 340, 300, 70);
  set_threads(3);
  CHECK(check_gemm<float>(counts, 340, 70, 40, true) == product);
  CHECK(check_outer<float>(counts, 340, 300, 70) == sums);
  set_threads(1);
}
