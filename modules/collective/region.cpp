module;
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
module tessera.collective;

import tessera.base;
import :region;

namespace tessera::collective {

std::shared_ptr<Region> Region::create(std::size_t bytes, bool shared) {
  constexpr std::size_t least = std::size_t{64} << 20;
  const int flags = (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE;
  for (std::size_t wanted = std::max(bytes, least); wanted >= least; wanted /= 2) {
    void* base = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base != MAP_FAILED) {
      return std::make_shared<Region>(static_cast<std::byte*>(base), wanted);
    }
  }
  fail(fmt::format("shared memory: cannot map {} ({}); lower the limits on address space",
                   format_bytes(least), std::strerror(errno)));
}

std::shared_ptr<Region> Region::map(int descriptor, std::size_t bytes) {
  void* base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (base == MAP_FAILED) {
    fail(fmt::format("shared memory: cannot map {} ({})", format_bytes(bytes),
                     std::strerror(errno)));
  }
  return std::make_shared<Region>(static_cast<std::byte*>(base), bytes);
}

Region::~Region() { munmap(base_, bytes_); }

bool SharedLock::lock(const std::atomic<std::uint32_t>& give_up) {
  for (int tries = 0; held_.exchange(1, std::memory_order_acquire) != 0; ++tries) {
    if (give_up.load(std::memory_order_acquire) != 0) {
      return false;
    }
    if (tries < 64) {
      sched_yield();
    } else {
      usleep(50);
    }
  }
  return true;
}

void ExtentTable::reset(std::uint64_t begin, std::uint64_t end) {
  count_ = 1;
  extents_[0] = {begin, end, false};
}

void ExtentTable::insert(std::uint32_t at, const Extent& extent) {
  std::copy_backward(extents_ + at, extents_ + count_, extents_ + count_ + 1);
  extents_[at] = extent;
  ++count_;
}

void ExtentTable::erase(std::uint32_t at) {
  std::copy(extents_ + at + 1, extents_ + count_, extents_ + at);
  --count_;
}

std::uint64_t ExtentTable::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  if (count_ + 2 > capacity) {
    return 0;
  }
  for (std::uint32_t i = 0; i < count_; ++i) {
    const Extent extent = extents_[i];
    const std::uint64_t begin = (extent.begin + alignment - 1) & ~(alignment - 1);
    if (extent.used || begin >= extent.end || extent.end - begin < bytes) {
      continue;
    }
    extents_[i] = {begin, begin + bytes, true};
    if (begin + bytes < extent.end) {
      insert(i + 1, {begin + bytes, extent.end, false});
    }
    if (extent.begin < begin) {
      insert(i, {extent.begin, begin, false});
    }
    return begin;
  }
  return 0;
}

std::uint64_t ExtentTable::release(std::uint64_t offset) {
  Extent* at = std::lower_bound(extents_, extents_ + count_, offset,
                                [](const Extent& e, std::uint64_t o) { return e.begin < o; });
  if (at == extents_ + count_ || at->begin != offset || !at->used) {
    return 0;
  }
  const std::uint64_t bytes = at->end - at->begin;
  at->used = false;
  auto i = static_cast<std::uint32_t>(at - extents_);
  if (i + 1 < count_ && !extents_[i + 1].used) {
    extents_[i].end = extents_[i + 1].end;
    erase(i + 1);
  }
  if (i > 0 && !extents_[i - 1].used) {
    extents_[i - 1].end = extents_[i].end;
    erase(i);
  }
  return bytes;
}

void discard_pages(std::byte* begin, std::size_t bytes, bool shared) {
  // Anonymous shared pages are removed like a file's; private ones are dropped.
  if (madvise(begin, bytes, shared ? MADV_REMOVE : MADV_DONTNEED) != 0) {
    std::memset(begin, 0, bytes);
  }
}

void advise_large_pages(std::byte* begin, std::size_t bytes) {
  madvise(begin, bytes, MADV_HUGEPAGE);  // only a wish: small pages serve as well
}

}  // namespace tessera::collective
