#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "elementwise.hpp"
#include "unary_functions.hpp"

namespace tessera::kernels {
namespace {

constexpr int kUnaryOps = static_cast<int>(UnaryOp::expm1) + 1;

/// How many vectors are computed as one.
template <class C, UnaryOp kOp>
constexpr std::int64_t at_once() {
  using enum UnaryOp;
  const bool by_lanes = kOp == sin || kOp == cos || kOp == log1p || kOp == expm1;
  if (std::is_same_v<C, double> || by_lanes) return 1;
  return kOp == gelu ? 2 : 4;  // more would not fit into the registers
}

/// Calls vectors(place, what to load there) for whole vectors, several as one, and last(place,
/// elements, less than a vector).
template <std::int64_t kAtOnce, class C, class Vectors, class Last>
[[gnu::always_inline]] inline void each_group(std::int64_t count, Vectors vectors, Last last) {
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  std::int64_t i = 0;
  if constexpr (kAtOnce > 1) {
    for (; i + kAtOnce * kLanes <= count; i += kAtOnce * kLanes)
      vectors(i, simd::ManyF32<kAtOnce>{});
  }
  for (; i + kLanes <= count; i += kLanes) vectors(i, simd::Vector<C>{});
  if (i < count) last(i, count - i);
}

template <class C, UnaryOp kOp>
void forward_kernel(std::int64_t count, const void* x, const void* /*dy*/, void* y) {
  const auto* in = static_cast<const C*>(x);
  auto* out = static_cast<C*>(y);
  simd::dispatch([=](auto) __attribute__((always_inline)) {
    each_group<at_once<C, kOp>(), C>(
        count,
        [=]<class V>(std::int64_t i, V) __attribute__((always_inline)) {
          const V result = unary_value<kOp>(simd::raw_load<V>(in + i));
          std::memcpy(out + i, &result, sizeof(V));
        },
        [=](std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
          simd::store_partial(out + i, rest, unary_value<kOp>(simd::load_partial(in + i, rest)));
        });
  });
}

template <class C, UnaryOp kOp>
void backward_kernel(std::int64_t count, const void* x, const void* dy, void* dx) {
  const auto* in = static_cast<const C*>(x);
  const auto* gradient = static_cast<const C*>(dy);
  auto* out = static_cast<C*>(dx);
  simd::dispatch([=](auto) __attribute__((always_inline)) {
    each_group<at_once<C, kOp>(), C>(
        count,
        [=]<class V>(std::int64_t i, V) __attribute__((always_inline)) {
          const V result =
              unary_slope<kOp>(simd::raw_load<V>(in + i)) * simd::raw_load<V>(gradient + i);
          std::memcpy(out + i, &result, sizeof(V));
        },
        [=](std::int64_t i, std::int64_t rest) __attribute__((always_inline)) {
          const auto slope = unary_slope<kOp>(simd::load_partial(in + i, rest));
          simd::store_partial(out + i, rest, slope * simd::load_partial(gradient + i, rest));
        });
  });
}

using KernelPointer = void (*)(std::int64_t, const void*, const void*, void*);
using Table = std::array<KernelPointer, kUnaryOps>;

template <class C, int... kOps>
constexpr Table forward_table(std::integer_sequence<int, kOps...> /*ops*/) {
  return {forward_kernel<C, static_cast<UnaryOp>(kOps)>...};
}

template <class C, int... kOps>
constexpr Table backward_table(std::integer_sequence<int, kOps...> /*ops*/) {
  return {backward_kernel<C, static_cast<UnaryOp>(kOps)>...};
}

template <class T>
void integer_unary(UnaryOp op, std::int64_t count, const void* x, void* y) {
  const auto* in = static_cast<const T*>(x);
  auto* out = static_cast<T*>(y);
  const auto each = [&](auto function) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(function(in[i]));
  };
  switch (op) {
    case UnaryOp::neg:
      return each([](T v) { return T{0} - v; });
    case UnaryOp::abs:
      return each([](T v) { return v < T{0} ? T{0} - v : v; });
    case UnaryOp::square:
      return each([](T v) { return v * v; });
    case UnaryOp::sign:
      return each([](T v) { return (v > T{0} ? 1 : 0) - (v < T{0} ? 1 : 0); });
    default:
      throw std::invalid_argument(
          "unary: this operation needs a floating type; cast the tensor first");
  }
}

}  // namespace

void unary(UnaryOp op, DType dtype, std::int64_t count, const void* x, void* y) {
  constexpr auto kOps = std::make_integer_sequence<int, kUnaryOps>{};
  static constexpr Table kFloat = forward_table<float>(kOps);
  static constexpr Table kDouble = forward_table<double>(kOps);
  if (dtype == DType::i64) return integer_unary<std::int64_t>(op, count, x, y);
  if (dtype == DType::i32) return integer_unary<std::int32_t>(op, count, x, y);
  if (dtype == DType::u8) return integer_unary<std::uint8_t>(op, count, x, y);
  if (!is_floating(dtype))
    throw std::invalid_argument("unary: bool tensors have no arithmetic; cast first");
  const KernelPointer kernel =
      (dtype == DType::f64 ? kDouble : kFloat)[static_cast<std::size_t>(op)];
  elementwise::run<1>(count, {elementwise::Access::contiguous(dtype, x)},
                      elementwise::Access::contiguous(dtype, y),
                      [&](std::int64_t n, const auto& operands, void* result) {
                        kernel(n, operands[0], nullptr, result);
                      });
}

void unary_backward(UnaryOp op, DType dtype, std::int64_t count, const void* x, const void* dy,
                    void* dx) {
  constexpr auto kOps = std::make_integer_sequence<int, kUnaryOps>{};
  static constexpr Table kFloat = backward_table<float>(kOps);
  static constexpr Table kDouble = backward_table<double>(kOps);
  if (!is_floating(dtype))
    throw std::invalid_argument("unary_backward: gradients need a floating type");
  const KernelPointer kernel =
      (dtype == DType::f64 ? kDouble : kFloat)[static_cast<std::size_t>(op)];
  elementwise::run<2>(
      count,
      {elementwise::Access::contiguous(dtype, x), elementwise::Access::contiguous(dtype, dy)},
      elementwise::Access::contiguous(dtype, dx),
      [&](std::int64_t n, const auto& operands, void* result) {
        kernel(n, operands[0], operands[1], result);
      });
}

}  // namespace tessera::kernels
