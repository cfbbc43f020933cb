#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

import tessera.base;

namespace tessera::app {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, int code) {
  fail_input(fmt::format("{}: cannot be read: {}", path.string(),
                         std::error_code(code, std::generic_category()).message()));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    cannot_read(path, errno);
  }
  struct stat status{};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    fail_input(fmt::format("{}: is not a regular file", path.string()));
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED) {
      const int code = errno;
      ::close(file);
      cannot_read(path, code);
    }
    data_ = static_cast<const std::byte*>(memory);
  }
  ::close(file);  // the mapping stays
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace tessera::app
