#include "plain_file.hpp"

#include <arrow/buffer.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/util/future.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "columns.hpp"

namespace parquet_source {

PlainFile::PlainFile(const std::string& path, arrow::MemoryPool* pool)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), pool_(pool) {
  struct stat status{};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const std::string why = std::generic_category().message(errno);
    static_cast<void>(PlainFile::Close());
    throw Problem("cannot be read: " + why);
  }
  if (!S_ISREG(status.st_mode)) {
    static_cast<void>(PlainFile::Close());
    throw Problem("is not a regular file");
  }
  size_ = status.st_size;
}

PlainFile::~PlainFile() { static_cast<void>(PlainFile::Close()); }

arrow::Status PlainFile::Close() {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
  return arrow::Status::OK();
}

arrow::Status PlainFile::Seek(std::int64_t position) {
  if (position < 0) {
    return arrow::Status::Invalid("a position before the file");
  }
  at_ = position;
  return arrow::Status::OK();
}

arrow::Result<std::int64_t> PlainFile::ReadAt(std::int64_t position, std::int64_t count,
                                              void* out) {
  if (position < 0 || count < 0) {
    return arrow::Status::Invalid("a part that no file has");
  }
  std::int64_t filled = 0;
  while (filled < count) {
    const ssize_t got =
        ::pread(descriptor_, static_cast<char*>(out) + filled,
                static_cast<std::size_t>(count - filled), static_cast<off_t>(position + filled));
    if (got < 0 && errno != EINTR) {
      return arrow::Status::IOError(std::generic_category().message(errno));
    }
    if (got == 0) {
      break;
    }
    filled += std::max<ssize_t>(got, 0);
  }
  return filled;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> PlainFile::ReadAt(std::int64_t position,
                                                                std::int64_t count) {
  if (position < 0 || count < 0) {
    return arrow::Status::Invalid("a part that no file has");
  }
  // Not more memory than there is to read, whatever the file says of its parts.
  count = std::min(count, std::max<std::int64_t>(size_ - position, 0));
  ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(count, pool_));
  ARROW_ASSIGN_OR_RAISE(const std::int64_t got, ReadAt(position, count, buffer->mutable_data()));
  ARROW_RETURN_NOT_OK(buffer->Resize(got));
  return std::shared_ptr<arrow::Buffer>(std::move(buffer));
}

arrow::Result<std::int64_t> PlainFile::Read(std::int64_t count, void* out) {
  ARROW_ASSIGN_OR_RAISE(const std::int64_t got, ReadAt(at_, count, out));
  at_ += got;
  return got;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> PlainFile::Read(std::int64_t count) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, count));
  at_ += buffer->size();
  return buffer;
}

arrow::Future<std::shared_ptr<arrow::Buffer>> PlainFile::ReadAsync(
    const arrow::io::IOContext& /*context*/, std::int64_t position, std::int64_t count) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(ReadAt(position, count));
}

arrow::Future<std::shared_ptr<arrow::Buffer>> PlainFile::ReadAsync(
    const arrow::io::IOContext& /*context*/, std::int64_t position, std::int64_t count,
    bool may_be_short) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(
      ReadAt(position, count, may_be_short));
}

}  // namespace parquet_source
