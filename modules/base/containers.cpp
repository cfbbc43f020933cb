module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
module tessera.base;

namespace tessera {

void Dims::too_many(std::size_t count) {
  fail(fmt::format("tensor: too many dims (at most {}, got {})", max_dims, count));
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

int wrap_dim(std::int64_t dim, int count, const char* what) {
  const std::int64_t wrapped = dim < 0 ? dim + count : dim;
  if (wrapped < 0 || wrapped >= count) {
    fail(fmt::format("{}: dim {} is out of range (a tensor of {} dims has dims {} to {})", what,
                     dim, count, -count, count - 1));
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

}  // namespace tessera
