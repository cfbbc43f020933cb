// Loops with calls of the C library stay scalar. Stands before the headers, as the warning is
// placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include "functions.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <utility>

#include "elementwise.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

using elementwise::Access;

constexpr int kFunctions = static_cast<int>(FunctionOp::addcdiv) + 1;

constexpr std::size_t operands_of(FunctionOp op) {
  using enum FunctionOp;
  switch (op) {
    case leaky_relu:
    case elu:
    case softplus:
    case hardtanh:
    case nan_to_num:
      return 1;
    case lerp:
    case addcmul:
    case addcdiv:
      return 3;
    default:
      return 2;
  }
}

/// Whether the loop consists of arithmetic only.
constexpr bool is_arithmetic(FunctionOp op) {
  using enum FunctionOp;
  return op == leaky_relu || op == leaky_relu_backward || op == hardtanh ||
         op == hardtanh_backward || op == lerp_scalar || op == lerp || op == addcmul ||
         op == addcdiv;
}

template <class T>
struct Numbers {
  T p, q, r;
};

template <FunctionOp kOp, class T>
[[gnu::always_inline]] inline T apply(T a, [[maybe_unused]] T b, [[maybe_unused]] T c,
                                      const Numbers<T>& n) {
  using enum FunctionOp;
  constexpr T kHalf = static_cast<T>(0.5);
  if constexpr (kOp == leaky_relu) return a > 0 ? a : n.p * a;
  if constexpr (kOp == leaky_relu_backward) return a > 0 ? b : n.p * b;
  if constexpr (kOp == elu) return a > 0 ? a : n.p * std::expm1(a);
  if constexpr (kOp == elu_backward) return a > 0 ? b : n.p * std::exp(a) * b;
  if constexpr (kOp == softplus) {
    return n.p * a > n.q ? a : std::log1p(std::exp(n.p * a)) / n.p;
  }
  if constexpr (kOp == softplus_backward) {
    return n.p * a > n.q ? b : b / (1 + std::exp(-n.p * a));
  }
  if constexpr (kOp == hardtanh) return a < n.p ? n.p : (a > n.q ? n.q : a);
  if constexpr (kOp == hardtanh_backward) return a > n.p && a < n.q ? b : T{0};
  if constexpr (kOp == nan_to_num) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    return a != a ? n.p : (a == kInfinity ? n.q : (a == -kInfinity ? n.r : a));
  }
  if constexpr (kOp == smooth_l1) {
    const T d = std::abs(a - b);
    return d < n.p ? kHalf * d * d / n.p : d - kHalf * n.p;
  }
  if constexpr (kOp == cross_entropy) {
    return (a > 0 ? a : T{0}) - a * b + std::log1p(std::exp(-std::abs(a)));
  }
  if constexpr (kOp == kl_div) return b > 0 ? b * (std::log(b) - a) : T{0};
  if constexpr (kOp == kl_div_log) return std::exp(b) * (b - a);
  // From the end that is nearer, so that weight 1 gives the end exactly.
  if constexpr (kOp == lerp_scalar) {
    return n.p < kHalf ? a + n.p * (b - a) : b - (1 - n.p) * (b - a);
  }
  if constexpr (kOp == lerp) return c < kHalf ? a + c * (b - a) : b - (1 - c) * (b - a);
  if constexpr (kOp == addcmul) return a + n.p * b * c;
  if constexpr (kOp == addcdiv) return a + n.p * b / c;
}

using Pointers = std::array<const void*, 3>;
using KernelPointer = void (*)(std::int64_t, const Pointers&, const double*, void*);

template <class T, FunctionOp kOp>
void kernel(std::int64_t count, const Pointers& operands, const double* numbers, void* y) {
  constexpr std::size_t kOperands = operands_of(kOp);
  const auto* a = static_cast<const T*>(operands[0]);
  const auto* b = static_cast<const T*>(operands[kOperands > 1 ? 1 : 0]);
  const auto* c = static_cast<const T*>(operands[kOperands > 2 ? 2 : 0]);
  const Numbers<T> n{static_cast<T>(numbers[0]), static_cast<T>(numbers[1]),
                     static_cast<T>(numbers[2])};
  auto* out = static_cast<T*>(y);
  if constexpr (is_arithmetic(kOp)) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
#pragma clang loop vectorize(assume_safety)
      for (std::int64_t i = 0; i < count; ++i) out[i] = apply<kOp, T>(a[i], b[i], c[i], n);
    });
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = apply<kOp, T>(a[i], b[i], c[i], n);
  }
}

template <class T, int... kOps>
constexpr std::array<KernelPointer, kFunctions> table(std::integer_sequence<int, kOps...> /*ops*/) {
  return {kernel<T, static_cast<FunctionOp>(kOps)>...};
}

KernelPointer find(FunctionOp op, DType dtype) {
  constexpr auto kOps = std::make_integer_sequence<int, kFunctions>{};
  static constexpr auto kFloat = table<float>(kOps);
  static constexpr auto kDouble = table<double>(kOps);
  return (dtype == DType::f64 ? kDouble : kFloat)[static_cast<std::size_t>(op)];
}

template <std::size_t N>
void run(FunctionOp op, DType dtype, Extents extents, std::span<const Operand> operands,
         const double* numbers, void* y) {
  std::array<std::int64_t, kMaxDims> contiguous{};
  std::int64_t stride = 1;
  for (std::size_t dim = extents.size(); dim-- > 0; stride *= extents[dim]) {
    contiguous[dim] = stride;
  }
  std::array<Extents, N + 1> strides;
  for (std::size_t i = 0; i < N; ++i) strides[i] = operands[i].strides;
  strides[N] = Extents(contiguous.data(), extents.size());
  const auto shape = elementwise::collapse<N + 1>(extents, strides);
  const auto accesses = [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
    return std::array<Access, N>{elementwise::access(dtype, operands[kAt].data, shape, kAt)...};
  }(std::make_index_sequence<N>{});
  const KernelPointer kernel = find(op, dtype);
  elementwise::run<N>(shape.count(), accesses, Access::contiguous(dtype, y),
                      [&](std::int64_t count, const auto& pointers, void* result) {
                        Pointers all{};
                        for (std::size_t i = 0; i < N; ++i) all[i] = pointers[i];
                        kernel(count, all, numbers, result);
                      });
}

}  // namespace

void function(FunctionOp op, DType dtype, Extents extents, std::span<const Operand> operands,
              std::span<const double> numbers, void* y) {
  if (!is_floating(dtype)) {
    throw std::invalid_argument("function: needs a floating type; cast the tensor first");
  }
  std::array<double, 3> padded{};
  for (std::size_t i = 0; i < numbers.size() && i < 3; ++i) padded[i] = numbers[i];
  switch (operands_of(op)) {
    case 1:
      return run<1>(op, dtype, extents, operands, padded.data(), y);
    case 2:
      return run<2>(op, dtype, extents, operands, padded.data(), y);
    default:
      return run<3>(op, dtype, extents, operands, padded.data(), y);
  }
}

}  // namespace tessera::kernels
