#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.nn;

#include "places.hpp"

namespace offload {
namespace {

using namespace tessera;

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t bytes_of(const Dims& shape, DType dtype) {
  return static_cast<std::size_t>(shape.product()) * size_of(dtype);
}

/// Whole pages; at least one, so that each tensor has an address of its own.
std::size_t in_pages(std::size_t bytes) {
  const std::size_t pages = (bytes + page_size() - 1) / page_size();
  return (pages == 0 ? 1 : pages) * page_size();
}

class HostMemory final : public MemoryPlace {
 public:
  /// Pinned, also all that is allocated later: gradients of what is kept here come from the device.
  Tensor allocate_for(Device device, const Dims& shape, DType dtype) override {
    device_ = device;
    return allocate(shape, dtype);
  }
  Tensor allocate(const Dims& shape, DType dtype) override {
    const std::size_t bytes = in_pages(bytes_of(shape, dtype));
    if (!(device_ == cpu)) {
      const Stream stream = Stream::default_of(device_);
      const auto pinned = std::make_shared<PinnedMemory>(stream, bytes);
      stream.synchronize();  // what its last user has queued is done: the host writes it now
      return from_memory(pinned->data(), shape, dtype, pinned);
    }
    void* const data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      fail({.thing = "Offload",
            .wrong =
                fmt::format("there is no memory for {} bytes ({})", bytes, std::strerror(errno)),
            .advice = "use more ranks on more machines, or to = \"file\""});
    }
    return from_memory(data, shape, dtype,
                       std::shared_ptr<void>(data, [bytes](void* d) { ::munmap(d, bytes); }));
  }

 private:
  Device device_ = cpu;
};

/// The file of one rank, and which parts of it are mapped.
class Extents {
 public:
  explicit Extents(std::string folder) : folder_(std::move(folder)) {}
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;
  ~Extents() {
    for (const auto& [bytes, free] : free_) {
      for (const auto& [data, offset] : free) {
        ::munmap(data, bytes);
      }
    }
    if (file_ >= 0) {
      ::close(file_);
    }
  }

  struct Extent {
    void* data = nullptr;
    std::int64_t offset = 0;
  };

  /// Whole pages of the file, in memory.
  Extent take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (auto& free = free_[bytes]; !free.empty()) {
      const Extent extent = free.back();
      free.pop_back();
      return extent;
    }
    open();
    const auto length = static_cast<off_t>(bytes);
    // Reserved: a write into a mapped file that the file system has no space for would be a signal.
    if (const int error = ::posix_fallocate(file_, end_, length); error != 0) {
      refuse(fmt::format("it has no space for {} bytes more", bytes), error);
    }
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, end_);
    if (data == MAP_FAILED) {
      refuse(fmt::format("{} bytes of a file cannot be mapped", bytes), errno);
    }
    const Extent extent{.data = data, .offset = end_};
    end_ += length;
    return extent;
  }

  void give_back(const Extent& extent, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_[bytes].push_back(extent);
  }

  /// Begins to write the pages, and lets go of the memory that shows them.
  void put_away(const Extent& extent, std::size_t bytes) const {
    ::sync_file_range(file_, extent.offset, static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
    ::madvise(extent.data, bytes, MADV_DONTNEED);
  }

 private:
  void open() {
    if (file_ >= 0) {
      return;
    }
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error) {
      refuse("it cannot be created", error.value());
    }
    std::string name = folder_ + "/tessera-offload-XXXXXX";
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) {
      refuse("no file can be made in it", errno);
    }
    ::unlink(name.c_str());  // it goes away with the process, however that ends
  }

  [[noreturn]] void refuse(const std::string& wrong, int error) const {
    fail({.thing = "Offload",
          .wrong = fmt::format("folder '{}': {} ({})", folder_, wrong, std::strerror(error)),
          .advice = "choose another folder, or free space there"});
  }

  std::string folder_;
  int file_ = -1;
  std::int64_t end_ = 0;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<Extent>> free_;  // by bytes
};

class File final : public MemoryPlace {
 public:
  explicit File(std::string folder) : extents_(std::make_shared<Extents>(std::move(folder))) {}

  Tensor allocate(const Dims& shape, DType dtype) override {
    const std::size_t bytes = in_pages(bytes_of(shape, dtype));
    const Extents::Extent extent = extents_->take(bytes);
    // The tensor holds the file.
    std::shared_ptr<void> hold(
        extent.data, [file = extents_, extent, bytes](void*) { file->give_back(extent, bytes); });
    const std::lock_guard lock(mutex_);
    mapped_[extent.data] = extent;
    return from_memory(extent.data, shape, dtype, std::move(hold));
  }

  void fetch(const Tensor& x) override {
    if (x.numel() > 0) {
      ::madvise(x.device_address(), bytes_of(x.shape(), x.dtype()), MADV_WILLNEED);
    }
  }

  void put_away(const Tensor& x) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = mapped_.find(x.device_address()); found != mapped_.end()) {
      extents_->put_away(found->second, in_pages(bytes_of(x.shape(), x.dtype())));
    }
  }

 private:
  std::shared_ptr<Extents> extents_;
  std::mutex mutex_;
  std::map<const void*, Extents::Extent> mapped_;  // all that was ever mapped: it stays mapped
};

}  // namespace

std::shared_ptr<MemoryPlace> host_memory() { return std::make_shared<HostMemory>(); }
std::shared_ptr<MemoryPlace> file(std::string folder) {
  return std::make_shared<File>(std::move(folder));
}

}  // namespace offload
