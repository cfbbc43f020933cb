module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <system_error>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import :unpacked_file;

namespace tessera::data {
namespace {

[[noreturn]] void cannot_read(const std::string& path, int code) {
  fail_input({.thing = path, .wrong = fmt::format("cannot be read: {}", reason_of(code))});
}

int open_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    cannot_read(path, errno);
  }
  return file;
}

FileIdentity identity_of(const struct stat& status) {
  return {.size = static_cast<std::size_t>(status.st_size),
          .device = status.st_dev,
          .inode = status.st_ino,
          .modified_seconds = status.st_mtim.tv_sec,
          .modified_nanoseconds = status.st_mtim.tv_nsec,
          .changed_seconds = status.st_ctim.tv_sec,
          .changed_nanoseconds = status.st_ctim.tv_nsec};
}

[[noreturn]] void changed(const std::string& path, const std::string& how) {
  fail_input({.thing = path,
              .wrong = fmt::format("the file was {} while the run read it", how),
              .advice = "restore it, and resume from the last checkpoint"});
}

}  // namespace

DataFile::DataFile(std::string path) : path_(std::move(path)) {
  const int file = open_file(path_);
  struct stat status{};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  ::close(file);
  if (!regular) {
    fail_input({.thing = path_, .wrong = "is not a regular file"});
  }
  identity_ = identity_of(status);
  size_ = identity_.size;
}

DataFile DataFile::content_of(std::string path) {
  DataFile file(std::move(path));
  if (const FilePacking packing = packing_of(file.path_); packing.open) {
    file.unpacked_ = std::make_shared<const UnpackedFile>(file.path_, packing, file.identity_);
    file.size_ = file.unpacked_->size();
    Handle(file).read(file, 0, {});  // an error where it has changed while it was unpacked
  }
  return file;
}

void DataFile::check_unchanged(int descriptor) const {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    cannot_read(path_, errno);
  }
  const FileIdentity now = identity_of(status);
  if (now.size < identity_.size) {
    changed(path_, fmt::format("truncated (expected {} bytes, got {})", identity_.size, now.size));
  }
  if (now.device != identity_.device || now.inode != identity_.inode) {
    changed(path_, "replaced");
  }
  if (now.size != identity_.size || now.modified_seconds != identity_.modified_seconds ||
      now.modified_nanoseconds != identity_.modified_nanoseconds) {
    changed(path_, "modified");
  }
}

DataFile::Handle::Handle(const DataFile& file) : descriptor_(open_file(file.path_)) {
  if (file.unpacked_) {
    unpacked_ = std::make_unique<UnpackedReader>(*file.unpacked_);
  }
}

DataFile::Handle::Handle(Handle&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), unpacked_(std::move(other.unpacked_)) {}

DataFile::Handle& DataFile::Handle::operator=(Handle&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(unpacked_, other.unpacked_);
  return *this;
}

DataFile::Handle::~Handle() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void DataFile::Handle::read(const DataFile& file, std::size_t offset,
                            std::span<std::byte> out) const {
  file.check_unchanged(descriptor_);
  if (unpacked_) {
    unpacked_->read(offset, out);
    return;
  }
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno != EINTR) {
      cannot_read(file.path_, errno);
    }
    if (count == 0) {  // truncated since the check
      changed(file.path_, fmt::format("truncated (expected {} bytes, got {})", file.size_, offset));
    }
    if (count > 0) {
      offset += static_cast<std::size_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
  }
}

void for_each_piece(const DataFile& file, std::size_t end,
                    const std::function<void(std::span<const std::byte>)>& take) {
  constexpr std::size_t most = std::size_t{1} << 20;
  const DataFile::Handle handle(file);
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at < end; at += bytes.size()) {
    bytes.resize(std::min(most, end - at));
    handle.read(file, at, bytes);
    take(bytes);
  }
}

}  // namespace tessera::data
