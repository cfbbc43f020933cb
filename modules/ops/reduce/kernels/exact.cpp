#include "reduce/kernels/exact.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

constexpr std::size_t kPositive = kExactDigits - 2;  // counts of infinities
constexpr std::size_t kNegative = kExactDigits - 1;
constexpr std::size_t kFinite = kExactDigits - 2;  // digits of the number
constexpr std::uint64_t kLow = 0xffffffffU;

using Digits = std::array<std::int64_t, kExactDigits>;

/// Adds number * 2^exponent; exponent >= -kExactBias.
void add_integer(Digits& digits, std::int64_t number, int exponent) {
  const bool negative = number < 0;
  const auto magnitude = negative ? std::uint64_t{0} - static_cast<std::uint64_t>(number)
                                  : static_cast<std::uint64_t>(number);
  const auto shift = static_cast<unsigned>(exponent + kExactBias);
  const std::size_t at = shift / 32;
  const unsigned __int128 wide = static_cast<unsigned __int128>(magnitude) << (shift % 32);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto digit =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(wide >> (32 * i)) & kLow);
    digits.at(at + i) += negative ? -digit : digit;
  }
}

void add_double(Digits& digits, double x) {
  if (!std::isfinite(x)) {
    digits[kPositive] += std::isnan(x) || x > 0 ? 1 : 0;
    digits[kNegative] += std::isnan(x) || x < 0 ? 1 : 0;
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto exponent = static_cast<int>((bits >> 52) & 0x7ffU);
  const auto fraction = static_cast<std::int64_t>(bits & ((std::uint64_t{1} << 52) - 1));
  const std::int64_t number = exponent == 0 ? fraction : fraction | (std::int64_t{1} << 52);
  add_integer(digits, x < 0 ? -number : number, std::max(exponent, 1) - 1075);
}

/// Makes all digits but the highest ones of 32 bits, without a sign.
void carry(Digits& digits) {
  for (std::size_t i = 0; i + 1 < kFinite; ++i) {
    digits.at(i + 1) += digits.at(i) >> 32;  // rounds down
    digits.at(i) &= static_cast<std::int64_t>(kLow);
  }
}

/// Floats are collected by their exponents before they become digits: one addition each. Several
/// tables, so that one addition does not wait for the one before.
class FloatTerms {
 public:
  /// As many numbers of 48 bits fit.
  static constexpr std::int64_t kMost = std::int64_t{1} << 15;

  /// At most kMost elements.
  template <class T>
  void add(Digits& digits, bool squares, std::int64_t count, const T* x) {
    for (auto& table : sums_) table.fill(0);
    squares ? collect<true>(digits, count, x) : collect<false>(digits, count, x);
    for (std::size_t exponent = 0; exponent < kExponents; ++exponent) {
      std::int64_t sum = 0;
      for (const auto& table : sums_) sum += table.at(exponent);
      if (sum == 0) continue;
      const int of_one = std::max(static_cast<int>(exponent), 1) - 150;
      add_integer(digits, sum, squares ? 2 * of_one : of_one);
    }
  }

 private:
  static constexpr std::size_t kExponents = 255;
  static constexpr std::size_t kTables = 4;

  template <bool squares, class T>
  void collect(Digits& digits, std::int64_t count, const T* x) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(x[i]);
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::size_t exponent = (bits >> 23) & 0xffU;
      if (exponent == kExponents) {
        add_double(digits,
                   squares ? std::abs(static_cast<double>(value)) : static_cast<double>(value));
        continue;
      }
      const auto fraction = static_cast<std::int64_t>(bits & 0x7fffffU);
      const std::int64_t number = exponent == 0 ? fraction : fraction | 0x800000;
      std::int64_t& sum = sums_[static_cast<std::size_t>(i) % kTables].data()[exponent];
      if constexpr (squares) {
        sum += number * number;
      } else {
        sum += bits >> 31 != 0 ? -number : number;
      }
    }
  }

  std::array<std::array<std::int64_t, kExponents + 1>, kTables> sums_;
};

template <class T>
void add_run(Digits& digits, bool squares, std::int64_t count, const T* x) {
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t i = 0; i < count; ++i) add_double(digits, squares ? x[i] * x[i] : x[i]);
  } else {
    FloatTerms terms;
    terms.add(digits, squares, count, x);
  }
  carry(digits);
}

template <class T>
void sum_type(Workspace& workspace, bool squares, std::int64_t count, const T* x,
              std::int64_t* result) {
  constexpr std::int64_t kParts = 64;
  const std::int64_t runs = (count + FloatTerms::kMost - 1) / FloatTerms::kMost;
  const std::int64_t parts = std::clamp<std::int64_t>(runs, 1, kParts);
  const Workspace::Scope scope(workspace);
  auto* const of_parts = workspace.take<Digits>(parts);
  if (workspace.counts()) return;
  parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      of_parts[part].fill(0);
      for (std::int64_t run = part; run < runs; run += parts) {
        const std::int64_t first = run * FloatTerms::kMost;
        add_run(of_parts[part], squares, std::min(FloatTerms::kMost, count - first), x + first);
      }
    }
  });
  Digits all = of_parts[0];
  for (std::int64_t part = 1; part < parts; ++part) {
    for (std::size_t i = 0; i < all.size(); ++i) all.at(i) += of_parts[part].at(i);
  }
  carry(all);
  std::copy(all.begin(), all.end(), result);
}

}  // namespace

void exact_sum(Workspace& workspace, DType dtype, bool squares, std::int64_t count, const void* x,
               std::int64_t* digits) {
  visit<FloatingTypes>(
      dtype,
      [&]<class T>(T) { sum_type(workspace, squares, count, static_cast<const T*>(x), digits); },
      [] { throw std::invalid_argument("exact_sum: needs a floating type"); });
}

double exact_value(const std::int64_t* given) {
  Digits digits;
  std::copy_n(given, digits.size(), digits.begin());
  if (digits[kPositive] != 0 || digits[kNegative] != 0) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return digits[kPositive] == 0   ? -infinity
           : digits[kNegative] == 0 ? infinity
                                    : std::numeric_limits<double>::quiet_NaN();
  }
  carry(digits);
  const bool negative = digits[kFinite - 1] < 0;
  if (negative) {
    for (std::size_t i = 0; i < kFinite; ++i) digits.at(i) = -digits.at(i);
    carry(digits);
  }
  std::size_t top = kFinite;
  while (top > 0 && digits.at(top - 1) == 0) --top;
  if (top == 0) return 0;
  // The highest 64 bits; what is below counts as half of the last one, if it is not 0.
  unsigned __int128 wide = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    wide = wide << 32 | (top > i ? static_cast<std::uint64_t>(digits.at(top - 1 - i)) & kLow : 0U);
  }
  bool rest = false;
  for (std::size_t i = 0; i + 3 < top; ++i) rest = rest || digits.at(i) != 0;
  const int unused = std::countl_zero(static_cast<std::uint64_t>(wide >> 64) << 32);
  const auto below = static_cast<unsigned>(32 - unused);
  const auto high = static_cast<std::uint64_t>(wide >> below);
  rest = rest || (wide & ((static_cast<unsigned __int128>(1) << below) - 1)) != 0;
  const auto magnitude = static_cast<double>(high | (rest ? 1U : 0U));
  const int exponent = 32 * (static_cast<int>(top) - 3) - kExactBias + static_cast<int>(below);
  const double value = std::ldexp(magnitude, exponent);
  return negative ? -value : value;
}

}  // namespace tessera::kernels
