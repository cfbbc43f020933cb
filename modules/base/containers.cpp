module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <string>
#include <string_view>
module tessera.base;

namespace tessera {

void Dims::too_many(std::size_t count) {
  fail({.thing = "tensor",
        .wrong = fmt::format("too many dims (at most {}, got {})", max_dims, count)});
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

int wrap_dim(std::int64_t dim, int count, const char* what) {
  const std::int64_t wrapped = dim < 0 ? dim + count : dim;
  if (wrapped < 0 || wrapped >= count) {
    fail({.thing = what,
          .wrong = fmt::format("dim {} is out of range (a tensor of {} dims has dims {} to {})",
                               dim, count, -count, count - 1)});
  }
  return static_cast<int>(wrapped);
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides = shape;
  std::int64_t stride = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return strides;
}

std::int64_t checked_product(const Dims& shape, std::string_view what) {
  // Half of what 64 bits count: the chunks of all ranks, the last one padded, fit too.
  constexpr std::int64_t most = std::int64_t{1} << 62;
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      fail({.thing = std::string(what),
            .wrong = "extents must not be negative",
            .got = to_string(shape)});
    }
    empty |= extent == 0;
    if (extent != 0 && (__builtin_mul_overflow(count, extent, &count) || count > most)) {
      fail(
          {.thing = std::string(what),
           .wrong = fmt::format("the shape {} has more elements than can be counted (at most 2^62)",
                                to_string(shape))});
    }
  }
  return empty ? 0 : count;
}

std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view what) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail({.thing = std::string(what),
          .wrong = fmt::format("{} + {} is out of the range of 64-bit integers", a, b)});
  }
  return sum;
}

std::int64_t checked_multiply(std::int64_t a, std::int64_t b, std::string_view what) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail({.thing = std::string(what),
          .wrong = fmt::format("{} * {} is out of the range of 64-bit integers", a, b)});
  }
  return product;
}

std::int64_t checked_integer(double value, std::string_view what) {
  constexpr double limit = 9223372036854775808.0;  // 2^63
  if (!(value >= -limit && value < limit)) {
    fail({.thing = std::string(what),
          .wrong = fmt::format("{} is out of the range of 64-bit integers", value)});
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace tessera
