module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/limits.hpp>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import :file_bytes;
import :mapped_file;
import :mapping;
import :place;

namespace tessera::checkpoint_detail {
namespace {

std::string reason() { return reason_of(errno); }

[[noreturn]] void cannot_read(const std::string& path, std::string_view why) {
  fail_input({.thing = path, .wrong = fmt::format("it cannot be read ({})", why)});
}

[[noreturn]] void cannot_write(const std::string& path, std::string_view step) {
  const int error = errno;
  fail({.thing = path,
        .wrong = fmt::format("{} failed ({})", step, reason()),
        .advice = error == ENOSPC || error == EDQUOT ? "make room there, or write elsewhere"
                  : error == EFBIG
                      ? "raise the limit on the size of a file (`ulimit -f`), or write "
                        "elsewhere"
                  : error == EEXIST ? "remove it, or write elsewhere"
                                    : "write elsewhere"});
}

}  // namespace

FileBytes::~FileBytes() = default;

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    cannot_read(path, reason());
  }
  struct stat status{};
  std::string problem;
  if (::fstat(descriptor, &status) != 0) {
    problem = reason();
  } else if (!S_ISREG(status.st_mode)) {
    problem = "it is not a file";
  } else if (status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* const at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (at == MAP_FAILED) {
      problem = reason();
    } else {
      data_ = static_cast<const std::byte*>(at);
      watched_.emplace(data_, size_);
    }
  }
  ::close(descriptor);
  if (!problem.empty()) {
    cannot_read(path, problem);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    watched_.reset();
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::check_intact() const {
  if (!watched_ || !watched_->lost()) {
    return;
  }
  std::error_code problem;
  const std::uintmax_t now = std::filesystem::file_size(path_, problem);
  if (problem || now >= size_) {
    fail_input({.thing = path_,
                .wrong = fmt::format("a part of its {} bytes cannot be read", size_),
                .advice = "download or write the file again, and check the disk"});
  }
  fail_input({.thing = path_,
              .wrong = "the file was truncated while it was read",
              .expected = fmt::format("{} bytes", size_),
              .got = fmt::format("{}", now),
              .advice = "download or write the file again"});
}

void MappedFile::drop(std::span<const std::byte> bytes) const {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes.size()) / page * page;
  if (first < last) {
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }
}

std::string read_front(const std::string& path, std::size_t count) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    cannot_read(path, reason());
  }
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
  std::string front(count, '\0');
  std::size_t size = 0;
  ssize_t more = 1;
  while (size < count && more > 0) {
    more = ::pread(descriptor, front.data() + size, count - size, static_cast<off_t>(size));
    if (more < 0 && errno == EINTR) {
      more = 1;
      continue;
    }
    size += more > 0 ? static_cast<std::size_t>(more) : 0;
  }
  const std::string problem = more < 0 ? reason() : "";
  ::close(descriptor);
  if (!problem.empty()) {
    cannot_read(path, problem);
  }
  front.resize(size);
  return front;
}

OutputFile::OutputFile(std::string path, bool shared) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (shared ? 0 : O_EXCL), 0666);
  if (descriptor_ < 0) {
    cannot_write(path_, "creating it");
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void OutputFile::write(std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    if (done <= 0) {
      if (done == 0) {
        errno = ENOSPC;
      }
      cannot_write(path_, "writing");
    }
    at += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0) {
    cannot_write(path_, "writing to the disk");
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    cannot_write(path_, "closing");
  }
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some file systems cannot synchronise folders (EINVAL); then there is nothing to wait for.
  const bool good = descriptor >= 0 && (::fsync(descriptor) == 0 || errno == EINVAL);
  const int error = errno;
  if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (!good) {
    errno = error;
    cannot_write(folder, "writing the folder to the disk");
  }
}

std::string parent_of(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) {
    p = p.parent_path();  // a slash at the end
  }
  const std::string parent = p.parent_path().string();
  return parent.empty() ? "." : parent;
}

void put_in_place(const std::string& fresh, const std::string& folder) {
  if (::rename(fresh.c_str(), folder.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      cannot_write(folder, "renaming the finished folder");
    }
    // The old one stays whole until the new one has its name.
    if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
      cannot_write(folder, "replacing the older folder of that name");
    }
    sync_folder(parent_of(folder));
    remove_folder(fresh, is_of_save);  // a rest is taken away by the next save
  }
  sync_folder(parent_of(folder));
}

}  // namespace tessera::checkpoint_detail
