// Loops with calls of the C library stay scalar. Stands before the headers, as the warning is
// placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include "functions.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "elementwise.hpp"
#include "function_values.hpp"
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

using Pointers = std::array<const void*, 3>;
using KernelPointer = void (*)(std::int64_t, const Pointers&, const double*, void*);

template <class T, FunctionOp kOp>
void kernel(std::int64_t count, const Pointers& operands, const double* numbers, void* y) {
  constexpr std::size_t kOperands = operands_of(kOp);
  const auto* a = static_cast<const T*>(operands[0]);
  const auto* b = static_cast<const T*>(operands[kOperands > 1 ? 1 : 0]);
  const auto* c = static_cast<const T*>(operands[kOperands > 2 ? 2 : 0]);
  const FunctionNumbers<T> n{static_cast<T>(numbers[0]), static_cast<T>(numbers[1]),
                             static_cast<T>(numbers[2])};
  auto* out = static_cast<T*>(y);
  if constexpr (is_arithmetic(kOp)) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
#pragma clang loop vectorize(assume_safety)
      for (std::int64_t i = 0; i < count; ++i) out[i] = function_value<kOp, T>(a[i], b[i], c[i], n);
    });
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = function_value<kOp, T>(a[i], b[i], c[i], n);
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
