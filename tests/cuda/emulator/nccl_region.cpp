#include "nccl_region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fault.hpp"
#include "text.hpp"

namespace emulator {

std::size_t Channel::put(const std::byte* from, std::size_t bytes) {
  const std::uint64_t at = written_.load(std::memory_order_relaxed);
  const std::size_t count =
      std::min<std::size_t>(bytes, capacity - (at - taken_.load(std::memory_order_acquire)));
  const std::size_t until_end = std::min<std::size_t>(count, capacity - at % capacity);
  std::memcpy(data_ + at % capacity, from, until_end);
  std::memcpy(data_, from + until_end, count - until_end);
  written_.store(at + count, std::memory_order_release);
  return count;
}

std::size_t Channel::take(std::byte* to, std::size_t bytes) {
  const std::uint64_t at = taken_.load(std::memory_order_relaxed);
  const std::size_t count =
      std::min<std::size_t>(bytes, written_.load(std::memory_order_acquire) - at);
  const std::size_t until_end = std::min<std::size_t>(count, capacity - at % capacity);
  std::memcpy(to, data_ + at % capacity, until_end);
  std::memcpy(to + until_end, data_, count - until_end);
  taken_.store(at + count, std::memory_order_release);
  return count;
}

std::string Region::create() {
  const int file = memfd_create("emulated communicator", MFD_CLOEXEC);  // stays open
  return file < 0 ? std::string() : text("/proc/", getpid(), "/fd/", file);
}

Region::Region(const std::string& path, int size) : size_(size) {
  const auto ranks = static_cast<std::size_t>(size);
  bytes_ = ranks * sizeof(Member) + ranks * ranks * sizeof(Channel);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
    throw Fault(text("NCCL: the communicator of the unique id cannot be opened at '", path,
                     "'; is the process alive that has made the id?"));
  }
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory_ == MAP_FAILED) {
    throw Fault("NCCL: the communicator's memory cannot be mapped");
  }
  members_ = static_cast<Member*>(memory_);
  channels_ = reinterpret_cast<Channel*>(members_ + size);
}

Region::~Region() { munmap(memory_, bytes_); }

}  // namespace emulator
