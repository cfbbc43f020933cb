#include "elementwise.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "shared/kernels/streaming.hpp"

namespace tessera::kernels::elementwise {
namespace {

/// Calls row(offset, count, stride, done) for the runs along the last dim that make up the elements
/// [first, first + count).
template <class Row>
void walk(int dims, const std::int64_t* extents, const std::int64_t* strides, std::int64_t first,
          std::int64_t count, Row row) {
  std::array<std::int64_t, kMaxDims> index{};
  std::int64_t rest = first;
  std::int64_t offset = 0;
  for (int dim = dims - 1; dim >= 0; --dim) {
    const auto at = static_cast<std::size_t>(dim);
    index[at] = rest % extents[dim];
    rest /= extents[dim];
    offset += index[at] * strides[dim];
  }
  const auto last = static_cast<std::size_t>(dims - 1);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t left = extents[last] - index[last];
    const std::int64_t run = left < count - done ? left : count - done;
    row(offset, run, strides[last], done);
    done += run;
    offset += run * strides[last];
    index[last] += run;
    for (auto dim = last; dim > 0 && index[dim] == extents[dim]; --dim) {
      offset += strides[dim - 1] - index[dim] * strides[dim];
      index[dim] = 0;
      ++index[dim - 1];
    }
  }
}

}  // namespace

Access Access::repeated(DType dtype, double value) {
  Access result(dtype, nullptr);
  result.kind_ = Kind::repeated;
  result.value_ = value;
  return result;
}

Access Access::strided(DType dtype, const void* data, int dims, const std::int64_t* extents,
                       const std::int64_t* strides) {
  Access result(dtype, data);
  result.kind_ = Kind::strided;
  result.dims_ = dims;
  for (int dim = 0; dim < dims; ++dim) {
    result.extents_[static_cast<std::size_t>(dim)] = extents[dim];
    result.strides_[static_cast<std::size_t>(dim)] = strides[dim];
  }
  return result;
}

const void* Access::read(std::int64_t first, std::int64_t count, void* buffer) const {
  const void* source =
      static_cast<const std::byte*>(data_) + first * static_cast<std::int64_t>(size_of(dtype_));
  if (direct()) return source;
  if (kind_ == Kind::repeated) {
    // Computing in float or double, the value is not rounded to 16 bits first.
    fill(compute_type(), count, value_, buffer);
    return buffer;
  }
  alignas(64) std::array<std::uint16_t, kBlock> raw;
  if (kind_ == Kind::strided) {
    void* gathered = narrow() ? static_cast<void*>(raw.data()) : buffer;
    visit_width(dtype_, [&](auto word) {
      using Word = decltype(word);
      const auto* from = static_cast<const Word*>(data_);
      auto* to = static_cast<Word*>(gathered);
      walk(dims_, extents_.data(), strides_.data(), first, count,
           [&](std::int64_t offset, std::int64_t run, std::int64_t stride, std::int64_t done) {
             const Word* run_from = from + offset;
             if (stride == 1) {
               std::memcpy(to + done, run_from, static_cast<std::size_t>(run) * sizeof(Word));
             } else {
               for (std::int64_t i = 0; i < run; ++i) to[done + i] = run_from[i * stride];
             }
           });
    });
    source = gathered;
  }
  if (narrow()) cast(dtype_, DType::f32, count, source, buffer);
  return buffer;
}

void* Access::target(std::int64_t first, void* buffer) const {
  if (!direct()) return buffer;
  return const_cast<std::byte*>(static_cast<const std::byte*>(data_)) +
         first * static_cast<std::int64_t>(size_of(dtype_));
}

bool Access::streams(std::int64_t count) const {
  return kind_ == Kind::contiguous && visit_width(dtype_, [&](auto word) {
           return simd::is_streamed(static_cast<const decltype(word)*>(data_), 0, count);
         });
}

void Access::stream(std::int64_t first, std::int64_t count, const void* buffer) const {
  alignas(64) std::array<std::uint16_t, kBlock> raw;
  if (narrow()) {
    cast(DType::f32, dtype_, count, buffer, raw.data());
    buffer = raw.data();
  }
  const auto size = static_cast<std::int64_t>(size_of(dtype_));
  auto* data = const_cast<std::byte*>(static_cast<const std::byte*>(data_));
  simd::stream_bytes(data + first * size, buffer, count * size);
}

void Access::streamed() { std::atomic_thread_fence(std::memory_order_seq_cst); }

void Access::write(std::int64_t first, std::int64_t count, const void* buffer) const {
  if (direct()) return;
  auto* data = const_cast<std::byte*>(static_cast<const std::byte*>(data_));
  if (kind_ == Kind::contiguous) {
    cast(DType::f32, dtype_, count, buffer,
         data + first * static_cast<std::int64_t>(size_of(dtype_)));
    return;
  }
  alignas(64) std::array<std::uint16_t, kBlock> raw;
  const void* source = buffer;
  if (narrow()) {
    cast(DType::f32, dtype_, count, buffer, raw.data());
    source = raw.data();
  }
  visit_width(dtype_, [&](auto word) {
    using Word = decltype(word);
    const auto* from = static_cast<const Word*>(source);
    auto* to = reinterpret_cast<Word*>(data);
    walk(dims_, extents_.data(), strides_.data(), first, count,
         [&](std::int64_t offset, std::int64_t run, std::int64_t stride, std::int64_t done) {
           for (std::int64_t i = 0; i < run; ++i) to[offset + i * stride] = from[done + i];
         });
  });
}

}  // namespace tessera::kernels::elementwise
