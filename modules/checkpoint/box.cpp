module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :box;
import :file_bytes;

namespace tessera::checkpoint_detail {

Dims difference(const Dims& a, const Dims& b) {
  Dims result = a;
  for (auto [value, less] : ranges::views::zip(result, b)) {
    value -= less;
  }
  return result;
}

Tensor box_of(const Tensor& x, const Dims& begin, const Dims& shape) {
  std::int64_t offset = x.offset();
  for (const auto [first, stride] : ranges::views::zip(begin, x.strides())) {
    offset += first * stride;
  }
  return alias(x, shape, x.strides(), offset);
}

Tensor view_of_box(const std::byte* data, const TensorInfo& info, const LocalPart& box) {
  const std::size_t width = size_of(info.dtype);
  if (reinterpret_cast<std::uintptr_t>(data) % width != 0) {
    Tensor copy = empty(box.shape, info.dtype);
    auto* to = static_cast<std::byte*>(copy.raw_data());
    for_each_run(info.shape, box, [&](std::int64_t first, std::int64_t count) {
      const auto bytes = static_cast<std::size_t>(count) * width;
      std::memcpy(to, data + static_cast<std::size_t>(first) * width, bytes);
      to += bytes;
    });
    return copy;
  }
  const Dims strides = contiguous_strides(info.shape);
  std::int64_t offset = 0;
  for (const auto [begin, stride] : ranges::views::zip(box.offset, strides)) {
    offset += begin * stride;
  }
  auto memory = Storage::borrow(const_cast<std::byte*>(data),
                                static_cast<std::size_t>(info.shape.product()) * width);
  return from_storage(std::move(memory), box.shape, strides, offset, info.dtype);
}

void copy_stored(const FileBytes& file, std::span<const std::byte> bytes, const TensorInfo& info,
                 const LocalPart& box, const Tensor& into, const std::string& what) {
  const std::byte* const data = bytes.data();
  if (info.dtype == DType::boolean) {
    // Any other byte would be undefined behaviour in whoever reads it as a bool.
    for_each_run(info.shape, box, [&](std::int64_t first, std::int64_t count) {
      if (std::any_of(data + first, data + first + count,
                      [](std::byte value) { return value > std::byte{1}; })) {
        fail_input({.thing = what,
                    .wrong = "a BOOL is neither 0 nor 1",
                    .advice = "download or write the file again"});
      }
    });
  }
  ops::copy_(into, view_of_box(data, info, box));
  file.check_intact();
  if (box.shape == info.shape) {
    file.drop(bytes);  // it was read to its end: a copy need not hold two
  }
}

}  // namespace tessera::checkpoint_detail
