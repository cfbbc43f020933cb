// Products of groups of rows on the emulated GPU, against sums in f64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "control.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;

#include "device.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// Numbers from -1 to 1 that look random and are the same in every run.
Tensor numbers(const Dims& shape, std::int64_t seed, DType type) {
  std::vector<double> values;
  auto state = static_cast<std::uint64_t>(seed);
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    values.push_back(static_cast<double>(state >> 40U) / static_cast<double>(1U << 23U) - 1);
  }
  return ops::cast(from_values(std::span<const double>(values), shape), type);
}

Tensor counts_of(const std::vector<std::int64_t>& counts) {
  return from_values(std::span<const std::int64_t>(counts),
                     {static_cast<std::int64_t>(counts.size())});
}

/// How far a sum of `terms` products with absolute values that sum to `size` may be from `wanted`.
double allowance(DType type, double wanted, double size, std::int64_t terms) {
  const double rounding = type == DType::bf16  ? 1.0 / 256
                          : type == DType::f16 ? 1.0 / 2048
                          : type == DType::f32 ? std::ldexp(1, -24)
                                               : std::ldexp(1, -52);
  const double of_sums = std::ldexp(1, type == DType::f64 ? -52 : -23);
  const double least = type == DType::f16 ? std::ldexp(1, -25) : 0;  // half of the least number
  return rounding * std::abs(wanted) + of_sums * static_cast<double>(terms + 1) * size + least;
}

/// A matrix in f64: element (row, column), of a tensor's values from `first` on.
struct Values {
  std::vector<double> all;
  std::int64_t columns;
  explicit Values(const Tensor& x)
      : all(to_doubles(ops::contiguous(x))), columns(x.shape()[x.dims() - 1]) {}
  double at(std::int64_t row, std::int64_t column) const {
    return all[static_cast<std::size_t>(row * columns + column)];
  }
};

/// The largest error, in units of what is allowed, of elements `found` that are sums of `terms`
/// products a(term) * b(term).
template <class A, class B>
double error_of_sum(double found, DType type, std::int64_t terms, A a, B b) {
  double sum = 0, size = 0;
  for (std::int64_t term = 0; term < terms; ++term) {
    sum += a(term) * b(term);
    size += std::abs(a(term) * b(term));
  }
  const double error = std::abs(found - sum);
  const double allowed = allowance(type, sum, size, terms);
  return error == 0 ? 0 : !(error <= allowed * 1e9) ? 1e9 : error / allowed;
}

Tensor on_gpu(const Tensor& x) { return ops::to_device(x, cuda()); }
Tensor back(const Tensor& x) { return ops::to_device(x, cpu); }

/// The largest error of y [rows, n] = x [rows, k] times the group's weight [k, n].
double error_of_product(const Tensor& y, const Tensor& x, const Tensor& weight,
                        const std::vector<std::int64_t>& counts) {
  const Values found(back(y)), of_x(back(x)), of_weight(back(weight));
  const std::int64_t k = x.shape()[1], n = weight.shape()[2];
  double largest = 0;
  std::int64_t row = 0;
  for (std::size_t group = 0; group <= counts.size(); ++group) {
    const bool has_matrix = group < counts.size();
    const std::int64_t end = has_matrix ? row + counts[group] : x.shape()[0];
    for (; row < end; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        const auto a = [&](std::int64_t term) { return of_x.at(row, term); };
        const auto b = [&](std::int64_t term) {
          return of_weight.at(static_cast<std::int64_t>(group) * k + term, column);
        };
        largest = std::max(
            largest, error_of_sum(found.at(row, column), y.dtype(), has_matrix ? k : 0, a, b));
      }
    }
  }
  return largest;
}

/// The largest error of y [groups, m, n] = a [rows, m] transposed times b [rows, n], by groups.
double error_of_outer(const Tensor& y, const Tensor& a, const Tensor& b,
                      const std::vector<std::int64_t>& counts) {
  const Values found(back(y)), of_a(back(a)), of_b(back(b));
  const std::int64_t m = a.shape()[1], n = b.shape()[1];
  double largest = 0;
  std::int64_t first = 0;
  for (std::size_t group = 0; group < counts.size(); ++group) {
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        largest = std::max(
            largest,
            error_of_sum(
                found.at(static_cast<std::int64_t>(group) * m + row, column), y.dtype(),
                counts[group], [&](std::int64_t term) { return of_a.at(first + term, row); },
                [&](std::int64_t term) { return of_b.at(first + term, column); }));
      }
    }
    first += counts[group];
  }
  return largest;
}

bool by_tensor_cores() {
  const std::string kernel = emulator_last_kernel();
  return kernel.ends_with("_bf16") || kernel.ends_with("_f16");
}

struct Sizes {
  std::int64_t rows, k, n;
  std::vector<std::int64_t> counts;
  bool in_pieces;  // rows that begin at multiples of 16 bytes
};

/// Tiles are 128 x 256, in steps of 32 terms: sizes beside them, groups without rows and of one,
/// and more groups than a warp has lanes.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all = {{300, 40, 264, {130, 0, 1, 128, 20}, true},
                            {140, 168, 8, {127, 13}, true},
                            {5, 8, 520, {0, 0, 5}, true},
                            {3, 24, 16, {0, 0}, true},
                            {70, 20, 24, {30, 0, 40}, false},
                            {70, 24, 20, {30, 0, 40}, false}};
  Sizes many{400, 16, 24, {}, true};
  for (std::int64_t group = 0; group < 70; ++group) many.counts.push_back(group * 7 % 11);
  all.push_back(many);
  return all;
}

/// Weights [groups, k, n], as they are or transposed.
Tensor weights(const Sizes& s, bool turned, DType type) {
  const auto groups = static_cast<std::int64_t>(s.counts.size());
  return turned ? ops::transpose(on_gpu(numbers({groups, s.n, s.k}, 2, type)), 1, 2)
                : on_gpu(numbers({groups, s.k, s.n}, 2, type));
}

}  // namespace

TEST_CASE("groups have products of their own, and rows behind them are 0") {
  for (const DType type : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
    const bool is_half = type == DType::bf16 || type == DType::f16;
    for (const Sizes& s : all_sizes()) {
      const Tensor x = on_gpu(numbers({s.rows, s.k}, 1, type));
      const Tensor counts = on_gpu(counts_of(s.counts));
      for (const bool turned : {false, true}) {
        INFO(name_of(type) << ", " << s.rows << " x " << s.k << " x " << s.n << ", " << turned);
        const Tensor weight = weights(s, turned, type);
        next_order();
        const Tensor y = ops::grouped_mm(x, weight, counts);
        CHECK(by_tensor_cores() == (is_half && s.in_pieces));
        CHECK(error_of_product(y, x, weight, s.counts) <= 1);
      }
      const Tensor dy = on_gpu(numbers({s.rows, s.n}, 3, type));
      next_order();
      const Tensor d = ops::grouped_outer(x, dy, counts);
      CHECK(by_tensor_cores() == (is_half && s.in_pieces));
      CHECK(error_of_outer(d, x, dy, s.counts) <= 1);
    }
  }
}

TEST_CASE("groups have the bits that they have alone, wherever their rows begin") {
  const Tensor x = on_gpu(numbers({200, 72}, 1, DType::bf16));
  const Tensor weight = on_gpu(numbers({3, 72, 40}, 2, DType::bf16));
  const Tensor dy = on_gpu(numbers({200, 40}, 3, DType::bf16));
  const Tensor counts = on_gpu(counts_of({37, 133, 30}));
  const auto rows = [](const Tensor& all) { return ops::narrow(all, 0, 37, 133); };
  const Tensor one = on_gpu(counts_of({133}));
  const Tensor alone = ops::grouped_mm(rows(x), ops::narrow(weight, 0, 1, 1), one);
  CHECK(to_doubles(rows(ops::grouped_mm(x, weight, counts))) == to_doubles(alone));
  const Tensor gradient = ops::narrow(ops::grouped_outer(x, dy, counts), 0, 1, 1);
  CHECK(to_doubles(gradient) == to_doubles(ops::grouped_outer(rows(x), rows(dy), one)));
}

TEST_CASE("what is outside of a group changes nothing in it") {
  std::vector<double> values = to_doubles(numbers({60, 16}, 1, DType::f64));
  for (std::size_t i = 0; i < 20 * std::size_t{16}; ++i) {
    values[i] = std::numeric_limits<double>::quiet_NaN();
    values[40 * std::size_t{16} + i] = std::numeric_limits<double>::infinity();
  }
  const Tensor x =
      ops::cast(on_gpu(from_values(std::span<const double>(values), {60, 16})), DType::bf16);
  const Tensor counts = on_gpu(counts_of({20, 20}));
  const std::vector<double> d = to_doubles(ops::grouped_outer(x, x, counts));
  CHECK(std::all_of(d.begin() + 256, d.end(), [](double v) { return std::isfinite(v); }));
  const Tensor weight = on_gpu(numbers({2, 16, 8}, 2, DType::bf16));
  const std::vector<double> y = to_doubles(ops::grouped_mm(x, weight, counts));
  CHECK(std::all_of(y.begin() + 160, y.begin() + 320, [](double v) { return std::isfinite(v); }));
  CHECK(std::all_of(y.begin() + 320, y.end(), [](double v) { return v == 0; }));
}

TEST_CASE("operands of 16 bits that are not in pieces of 16 bytes have products too") {
  const std::vector<std::int64_t> counts = {9, 31};
  const Tensor given = on_gpu(counts_of(counts));
  const Tensor wide = on_gpu(numbers({40, 44}, 1, DType::f16));
  const Tensor tall = ops::transpose(on_gpu(numbers({40, 40}, 1, DType::f16)), 0, 1);
  const Tensor weight = on_gpu(numbers({2, 40, 16}, 2, DType::f16));
  const Tensor matrices = on_gpu(numbers({2, 40, 16, 2}, 2, DType::f16));
  const Tensor scattered = ops::select(matrices, 3, 1);
  for (const Tensor& x : {ops::narrow(wide, 1, 4, 40), tall}) {
    const Tensor y = ops::grouped_mm(x, weight, given);
    CHECK(!by_tensor_cores());
    CHECK(error_of_product(y, x, weight, counts) <= 1);
    CHECK(error_of_outer(ops::grouped_outer(x, x, given), x, x, counts) <= 1);
  }
  const Tensor x = on_gpu(numbers({40, 40}, 1, DType::f16));
  CHECK(error_of_product(ops::grouped_mm(x, scattered, given), x, scattered, counts) <= 1);
  CHECK(!by_tensor_cores());
}

TEST_CASE(
    "counts that do not fit their rows are errors, also of many groups and without elements") {
  const auto message = [](std::int64_t rows, std::int64_t n, DType type,
                          const std::vector<std::int64_t>& counts) -> std::string {
    const auto groups = static_cast<std::int64_t>(counts.size());
    next_order();
    try {
      const Tensor x = on_gpu(numbers({rows, 8}, 1, type));
      const Tensor y =
          ops::grouped_mm(x, on_gpu(numbers({groups, 8, n}, 2, type)), on_gpu(counts_of(counts)));
      to_doubles(y);
      to_doubles(on_gpu(counts_of(counts)));  // waits, also where y has no elements
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  for (const DType type : {DType::f32, DType::bf16}) {
    CHECK_THAT(message(4, 8, type, {2, 3}),
               Catch::Contains("grouped_mm: group 1 does not fit into the rows (expected 0 to 2 "
                               "rows, got 3)"));
    CHECK_THAT(message(0, 8, type, {0, 1}), Catch::Contains("group 1 does not fit"));
    CHECK_THAT(message(4, 0, type, {5}), Catch::Contains("group 0 does not fit"));
    std::vector<std::int64_t> many(40, 1);
    CHECK(message(40, 8, type, many).empty());
    many[36] = -2;
    many[38] = std::numeric_limits<std::int64_t>::max();
    CHECK_THAT(
        message(40, 8, type, many),
        Catch::Contains("group 36 does not fit into the rows (expected 0 to 4 rows, got -2)"));
    many[36] = 1;
    CHECK_THAT(message(40, 8, type, many), Catch::Contains("group 38 does not fit"));
  }
}
