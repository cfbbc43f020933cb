#include "apply.hpp"

#include <array>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "elementwise.hpp"

namespace tessera::kernels {
namespace {

using elementwise::Access;

constexpr std::size_t kOperands = 3;

FunctionKernel kernel_for(const FunctionKernels& function, DType dtype) {
  const FunctionKernel found = function[dtype];
  if (found == nullptr) {
    throw std::invalid_argument(function[DType::f32] == nullptr
                                    ? "this function needs bool or integers; cast the tensor first"
                                : function[DType::i64] == nullptr
                                    ? "this function needs a floating type; cast the tensor first"
                                : function[DType::boolean] == nullptr
                                    ? "this function does not take bool; cast the tensor first"
                                    : "this function does not take types that are only stored");
  }
  return found;
}

/// Calls body(std::integral_constant) for the number of operands.
template <class Body>
void visit_operands(std::size_t operands, Body body) {
  switch (operands) {
    case 1:
      return body(std::integral_constant<std::size_t, 1>{});
    case 2:
      return body(std::integral_constant<std::size_t, 2>{});
    case kOperands:
      return body(std::integral_constant<std::size_t, kOperands>{});
    default:
      throw std::invalid_argument("a function has one to three operands");
  }
}

template <std::size_t N>
void run(const FunctionKernels& function, DType dtype, std::int64_t count,
         const std::array<Access, N>& operands, std::span<const double> numbers, void* y) {
  const FunctionKernel kernel = kernel_for(function, dtype);
  const double* const first = numbers.data();
  elementwise::run<N>(count, operands,
                      Access::contiguous(function.is_truth ? DType::boolean : dtype, y),
                      [=](std::int64_t n, const auto& pointers, void* result) {
                        kernel(n, pointers.data(), first, result);
                      });
}

}  // namespace

void apply(const FunctionKernels& function, DType dtype, std::int64_t count,
           std::span<const void* const> operands, std::span<const double> numbers, void* y) {
  visit_operands(operands.size(), [&]<std::size_t N>(std::integral_constant<std::size_t, N>) {
    [&]<std::size_t... at>(std::index_sequence<at...>) {
      run<N>(function, dtype, count, {Access::contiguous(dtype, operands[at])...}, numbers, y);
    }(std::make_index_sequence<N>{});
  });
}

void apply_strided(const FunctionKernels& function, DType dtype, Extents extents,
                   std::span<const Operand> operands, std::span<const double> numbers, void* y) {
  visit_operands(operands.size(), [&]<std::size_t N>(std::integral_constant<std::size_t, N>) {
    std::array<std::int64_t, kMaxDims> contiguous{};
    std::int64_t stride = 1;
    for (std::size_t dim = extents.size(); dim-- > 0; stride *= extents[dim]) {
      contiguous[dim] = stride;
    }
    std::array<Extents, N + 1> strides;
    for (std::size_t i = 0; i < N; ++i) strides[i] = operands[i].strides;
    strides[N] = Extents(contiguous.data(), extents.size());
    const auto shape = elementwise::collapse<N + 1>(extents, strides);
    [&]<std::size_t... at>(std::index_sequence<at...>) {
      run<N>(function, dtype, shape.count(),
             {elementwise::access(dtype, operands[at].data, shape, at)...}, numbers, y);
    }(std::make_index_sequence<N>{});
  });
}

}  // namespace tessera::kernels
