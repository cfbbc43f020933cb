#pragma once
// Memory for the intermediate values of a kernel.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::kernels {

/// Memory of `Owner`, kept by the thread until it ends: fresh pages would cost more than what is
/// done in them. The next call with the same types may move it.
template <class Owner, class T>
T* scratch(std::int64_t count) {
  thread_local std::vector<T> buffer;
  if (buffer.size() < static_cast<std::size_t>(count))
    buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

}  // namespace tessera::kernels
