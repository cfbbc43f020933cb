#pragma once
// The driver of the pointwise kernels: operands that are contiguous, strided, one repeated value,
// or 16 bits wide are brought, a block at a time, into contiguous arrays of the type that is
// computed in.

#include <array>
#include <cstdint>
#include <span>

#include "pointwise.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels::elementwise {

/// Elements of a block; all of a block's buffers stay in the first-level cache.
inline constexpr std::int64_t kBlock = 512;
inline constexpr std::int64_t kGrain = 1 << 15;

/// Extents and the strides of N arrays, without dims of extent 1 and with dims joined where all of
/// the arrays allow it.
template <std::size_t N>
struct CollapsedDims {
  int dims = 0;
  std::array<std::int64_t, kMaxDims> extents{};
  std::array<std::array<std::int64_t, kMaxDims>, N> strides{};

  [[nodiscard]] std::int64_t count() const {
    std::int64_t product = 1;
    for (int dim = 0; dim < dims; ++dim) product *= extents[static_cast<std::size_t>(dim)];
    return product;
  }
};

template <std::size_t N>
CollapsedDims<N> collapse(Extents extents, const std::array<Extents, N>& strides) {
  CollapsedDims<N> result;
  for (std::size_t dim = 0; dim < extents.size(); ++dim) {
    if (extents[dim] == 1) continue;
    bool joins = result.dims > 0;
    const auto last = static_cast<std::size_t>(result.dims) - 1;
    for (std::size_t i = 0; i < N && joins; ++i) {
      joins = result.strides[i][last] == strides[i][dim] * extents[dim];
    }
    const std::size_t at = joins ? last : static_cast<std::size_t>(result.dims++);
    result.extents[at] = joins ? result.extents[at] * extents[dim] : extents[dim];
    for (std::size_t i = 0; i < N; ++i) result.strides[i][at] = strides[i][dim];
  }
  return result;
}

/// Where the elements of an operand or a result are, in the order of their linear index.
class Access {
 public:
  static Access contiguous(DType dtype, const void* data) { return Access(dtype, data); }

  /// One value for all elements.
  static Access repeated(DType dtype, double value);

  static Access strided(DType dtype, const void* data, int dims, const std::int64_t* extents,
                        const std::int64_t* strides);

  /// Contiguous and of the type that is computed in: blocks need no buffer.
  [[nodiscard]] bool direct() const { return kind_ == Kind::contiguous && !narrow(); }

  /// `count` (<= kBlock unless direct) elements from number `first` on, as an array of compute
  /// type: the elements themselves, or `buffer` (kBlock * 8 bytes).
  const void* read(std::int64_t first, std::int64_t count, void* buffer) const;

  /// Where to compute `count` results: in place, or in `buffer`, which `write` then puts in place.
  void* target(std::int64_t first, void* buffer) const;
  void write(std::int64_t first, std::int64_t count, const void* buffer) const;

  /// Whether `count` results are larger than the caches and are written past them: from a buffer,
  /// with `stream` in place of `write`, and `streamed` when the thread is done.
  [[nodiscard]] bool streams(std::int64_t count) const;
  void stream(std::int64_t first, std::int64_t count, const void* buffer) const;
  static void streamed();

  /// Whether both begin with the same element.
  [[nodiscard]] bool same_data(const Access& other) const { return data_ == other.data_; }

  [[nodiscard]] DType compute_type() const { return narrow() ? DType::f32 : dtype_; }

 private:
  enum class Kind : std::uint8_t { contiguous, repeated, strided };

  Access(DType dtype, const void* data) : dtype_(dtype), data_(data) {}

  [[nodiscard]] bool narrow() const { return dtype_ == DType::bf16 || dtype_ == DType::f16; }

  DType dtype_;
  Kind kind_ = Kind::contiguous;
  const void* data_ = nullptr;
  double value_ = 0.0;
  int dims_ = 0;
  std::array<std::int64_t, kMaxDims> extents_{};
  std::array<std::int64_t, kMaxDims> strides_{};
};

/// A kernel on contiguous arrays of compute type: operands[0..N), result.
template <std::size_t N>
using Kernel =
    FunctionRef<void(std::int64_t count, const std::array<const void*, N>& operands, void* result)>;

/// Runs a kernel over `count` elements.
template <std::size_t N>
void run(std::int64_t count, const std::array<Access, N>& operands, const Access& result,
         Kernel<N> kernel) {
  bool direct = result.direct();
  bool in_place = false;  // what it writes was just read, so it is in the cache
  for (const Access& operand : operands) {
    direct = direct && operand.direct();
    in_place = in_place || operand.same_data(result);
  }
  const bool streams = !in_place && result.streams(count);
  parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t step = direct && !streams ? end - begin : kBlock;
    alignas(64) std::array<std::array<std::uint64_t, kBlock>, N + 1> buffers;
    for (std::int64_t first = begin; first < end; first += step) {
      const std::int64_t size = first + step < end ? step : end - first;
      std::array<const void*, N> pointers;
      for (std::size_t i = 0; i < N; ++i)
        pointers[i] = operands[i].read(first, size, buffers[i].data());
      if (streams) {
        kernel(size, pointers, buffers[N].data());
        result.stream(first, size, buffers[N].data());
      } else {
        kernel(size, pointers, result.target(first, buffers[N].data()));
        result.write(first, size, buffers[N].data());
      }
    }
    if (streams) Access::streamed();
  });
}

/// A strided array of `shape`, which is contiguous if its strides say so.
template <std::size_t N>
Access access(DType dtype, const void* data, const CollapsedDims<N>& shape, std::size_t which) {
  const auto& strides = shape.strides[which];
  if (shape.dims == 0 || (shape.dims == 1 && strides[0] == 1))
    return Access::contiguous(dtype, data);
  return Access::strided(dtype, data, shape.dims, shape.extents.data(), strides.data());
}

}  // namespace tessera::kernels::elementwise
