#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

#include "fault.hpp"
#include "modes.hpp"
#include "text.hpp"

namespace emulator {
namespace {

constexpr std::size_t page = 4096;

std::size_t pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }

}  // namespace

Memory& Memory::instance() {
  static auto* memory = new Memory;
  return *memory;
}

Memory::Memory() {
  const int file = memfd_create("emulated devices", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(range_)) != 0) {
    throw Fault("the emulator cannot create its devices' memory; check the process's limits");
  }
  void* open = mmap(nullptr, range_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  void* closed = mmap(nullptr, range_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (open == MAP_FAILED || closed == MAP_FAILED) {
    throw Fault("the emulator cannot map its devices' memory; check the process's limits");
  }
  open_ = static_cast<std::byte*>(open);
  closed_ = static_cast<std::byte*>(closed);
}

void* Memory::allocate(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = pages(bytes);
  if (used_[device] + wanted > device_bytes() || next_ + wanted + page > range_) {
    return nullptr;
  }
  const std::size_t begin = next_;
  next_ += wanted + page;
  used_[device] += wanted;
  pieces_[begin] = {bytes, device, true};
  if (!Modes::instance().only_lists) {
    std::memset(open_ + begin, 0xff, bytes);
  }
  return closed_ + begin;
}

bool Memory::take(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (used_[device] + bytes > device_bytes()) {
    return false;
  }
  used_[device] += bytes;
  return true;
}

void Memory::give_back(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_[device] -= bytes;
}

std::size_t Memory::used(int device) {
  const std::lock_guard lock(mutex_);
  return used_[device];
}

bool Memory::free(void* data) {
  const std::lock_guard lock(mutex_);
  if (!is_device(data)) {
    return false;
  }
  const auto found =
      pieces_.find(static_cast<std::size_t>(static_cast<std::byte*>(data) - closed_));
  if (found == pieces_.end() || !found->second.live) {
    return false;
  }
  found->second.live = false;
  ++frees_;
  used_[found->second.device] -= pages(found->second.bytes);
  madvise(open_ + found->first, pages(found->second.bytes), MADV_REMOVE);
  return true;
}

void* Memory::allocate_pinned(std::size_t bytes) {
  void* data =
      mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  pinned_[static_cast<std::byte*>(data)] = bytes;
  return data;
}

bool Memory::free_pinned(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = pinned_.find(static_cast<std::byte*>(data));
  if (found == pinned_.end()) {
    return false;
  }
  munmap(data, pages(found->second));
  pinned_.erase(found);
  return true;
}

bool Memory::is_pinned(const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto* first = static_cast<const std::byte*>(data);
  auto after = pinned_.upper_bound(first);
  return after != pinned_.begin() &&
         first + bytes <= std::prev(after)->first + std::prev(after)->second;
}

void Memory::open_addresses(std::byte* structure, std::size_t bytes) const {
  for (std::size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, structure + at, sizeof(word));
    if (is_device(word)) {
      word = opened(word);
      std::memcpy(structure + at, &word, sizeof(word));
    }
  }
}

std::string Memory::check(const void* closed, std::size_t bytes) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(closed) - closed_);
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(offset);
  if (after == pieces_.begin()) {
    return "is before all allocations of the device";
  }
  const auto& [begin, piece] = *std::prev(after);
  if (piece.live && offset + bytes <= begin + piece.bytes) {
    return {};
  }
  const std::string where =
      text("the allocation of ", piece.bytes, " bytes at ", address(closed_ + begin));
  if (offset + bytes > begin + piece.bytes) {
    return text("is ", offset + bytes - begin - piece.bytes, " bytes past the end of ", where,
                "; look at the kernel's limits and strides");
  }
  return text("is in ", where,
              ", which was freed; look for the free that does not wait for this stream");
}

std::pair<std::size_t, std::size_t> Memory::live_piece(const void* opened) {
  const std::size_t offset = offset_of(opened);
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(offset);
  if (after == pieces_.begin() || !std::prev(after)->second.live) {
    return {0, 0};
  }
  return {std::prev(after)->first, std::prev(after)->first + std::prev(after)->second.bytes};
}

}  // namespace emulator
