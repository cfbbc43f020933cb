module;
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <tessera/limits.hpp>
module tessera.ranks;

import tessera.base;
import :region;

namespace tessera::collective {

namespace {

constexpr std::size_t smallest_region = std::size_t{64} << 20;

[[noreturn]] void cannot_map(std::size_t bytes, int error) {
  fail({.thing = "shared memory",
        .wrong = fmt::format("cannot map {} of address space ({})", format_bytes(bytes),
                             reason_of(error)),
        .advice = "raise the limit; where there is none, free memory, or let the system promise "
                  "more than it has (vm.overcommit_memory)"});
}

std::byte* try_map(std::size_t bytes, int flags, int descriptor) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, descriptor, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

}  // namespace

std::shared_ptr<Region> Region::create(std::size_t bytes, bool shared) {
  const int flags = (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS;
  for (std::size_t wanted = std::max(bytes, smallest_region); wanted >= smallest_region;
       wanted /= 2) {
    if (std::byte* base = try_map(wanted, flags, -1)) {
      return std::make_shared<Region>(base, wanted);
    }
  }
  cannot_map(smallest_region, errno);
}

std::shared_ptr<Region> Region::create_shareable(std::size_t bytes) {
  const int descriptor = memfd_create("tessera", MFD_CLOEXEC);
  if (descriptor < 0) {
    fail({.thing = "shared memory", .wrong = fmt::format("cannot be made ({})", reason_of(errno))});
  }
  // The limit on file sizes applies to this file too; exceeding it raises a signal.
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  std::size_t wanted = std::max(bytes, smallest_region);
  if (limit.rlim_cur < smallest_region) {
    close(descriptor);
    fail_input(
        {.thing = "shared memory",
         .wrong =
             "the limit on the size of a file is too low for ranks that another program starts",
         .expected = fmt::format("at least {}", format_bytes(smallest_region)),
         .got = format_bytes(limit.rlim_cur),
         .advice = "raise `ulimit -f`"});
  }
  int error = 0;
  for (wanted = std::min<std::size_t>(wanted, limit.rlim_cur); wanted >= smallest_region;
       wanted /= 2) {
    if (std::byte* base = try_map(wanted, MAP_SHARED, descriptor)) {
      if (ftruncate(descriptor, static_cast<off_t>(wanted)) == 0) {
        return std::make_shared<Region>(base, wanted, descriptor);
      }
      error = errno;
      munmap(base, wanted);
    } else {
      error = errno;
    }
  }
  close(descriptor);
  cannot_map(smallest_region, error);
}

std::shared_ptr<Region> Region::map(int descriptor, std::size_t bytes) {
  std::byte* base = try_map(bytes, MAP_SHARED, descriptor);
  if (base == nullptr) {
    cannot_map(bytes, errno);
  }
  return std::make_shared<Region>(base, bytes);
}

Region::~Region() {
  munmap(base_, bytes_);
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

void sleep_on(const void* word, std::uint32_t seen, double seconds) {
  const timespec limit{
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_on(const void* word, int sleepers) {
  syscall(SYS_futex, word, FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
}

bool SharedLock::sleep(int rank, double seconds) {
  // Others may sleep besides this rank: whoever wakes one by one must go on waking.
  const std::uint32_t marked = (static_cast<std::uint32_t>(rank) + 1) | has_sleepers;
  std::uint32_t seen = word_.load(std::memory_order_relaxed);
  if (seen == 0) {
    return take(marked);
  }
  if ((seen & has_sleepers) == 0 &&
      !word_.compare_exchange_strong(seen, seen | has_sleepers, std::memory_order_relaxed)) {
    return false;
  }
  sleep_on(&word_, seen | has_sleepers, seconds);
  return take(marked);
}

void ExtentTable::reset(std::byte* base, std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t first_table = 4096;
  table_ = begin;
  used_bytes_ = first_table;
  capacity_ = first_table / sizeof(Extent);
  count_ = 2;
  entries(base)[0] = {begin, begin + first_table, true};
  entries(base)[1] = {begin + first_table, end, false};
}

void ExtentTable::insert(Extent* extents, std::uint32_t at, const Extent& extent) {
  std::copy_backward(extents + at, extents + count_, extents + count_ + 1);
  extents[at] = extent;
  ++count_;
}

void ExtentTable::erase(Extent* extents, std::uint32_t at) {
  std::copy(extents + at + 1, extents + count_, extents + at);
  --count_;
}

std::uint64_t ExtentTable::place(std::byte* base, std::uint64_t bytes, std::uint64_t alignment) {
  Extent* extents = entries(base);
  for (std::uint32_t i = 0; i < count_; ++i) {
    const Extent extent = extents[i];
    const std::uint64_t begin = (extent.begin + alignment - 1) & ~(alignment - 1);
    if (extent.used || begin >= extent.end || extent.end - begin < bytes) {
      continue;
    }
    extents[i] = {begin, begin + bytes, true};
    if (begin + bytes < extent.end) {
      insert(extents, i + 1, {begin + bytes, extent.end, false});
    }
    if (extent.begin < begin) {
      insert(extents, i, {extent.begin, begin, false});
    }
    used_bytes_ += bytes;
    return begin;
  }
  return 0;
}

bool ExtentTable::grow(std::byte* base) {
  const std::uint64_t old = table_;
  const std::uint64_t bytes = 2 * std::uint64_t{capacity_} * sizeof(Extent);
  const std::uint64_t offset = place(base, (bytes + 4095) & ~std::uint64_t{4095}, 4096);
  if (offset == 0) {
    return false;
  }
  std::memcpy(base + offset, base + old, count_ * sizeof(Extent));
  table_ = offset;
  capacity_ = static_cast<std::uint32_t>(bytes / sizeof(Extent));
  if (const std::uint64_t freed = release(base, old); freed != 0) {
    discard_pages(base + old, freed, true);
  }
  return true;
}

std::uint64_t ExtentTable::allocate(std::byte* base, std::uint64_t bytes, std::uint64_t alignment) {
  // One placement adds up to two entries; moving the table is a placement too.
  if (count_ + 4 > capacity_ && !grow(base)) {
    return 0;
  }
  return place(base, bytes, alignment);
}

std::uint64_t ExtentTable::release(std::byte* base, std::uint64_t offset) {
  Extent* extents = entries(base);
  Extent* at = std::lower_bound(extents, extents + count_, offset,
                                [](const Extent& e, std::uint64_t o) { return e.begin < o; });
  if (at == extents + count_ || at->begin != offset || !at->used) {
    return 0;
  }
  const std::uint64_t bytes = at->end - at->begin;
  at->used = false;
  used_bytes_ -= bytes;
  auto i = static_cast<std::uint32_t>(at - extents);
  if (i + 1 < count_ && !extents[i + 1].used) {
    extents[i].end = extents[i + 1].end;
    erase(extents, i + 1);
  }
  if (i > 0 && !extents[i - 1].used) {
    extents[i - 1].end = extents[i].end;
    erase(extents, i);
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
  madvise(begin, bytes, MADV_HUGEPAGE);  // a hint: small pages work too
}

}  // namespace tessera::collective
