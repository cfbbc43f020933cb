// A file that Arrow reads in the thread that asks.
#pragma once
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>

#include <cstdint>
#include <memory>
#include <string>

namespace parquet_source {

/// Reads by position, without a mapping. Arrow's own file reads in threads of the library where it
/// is asked for a later time.
class PlainFile final : public arrow::io::RandomAccessFile {
 public:
  /// Throws Problem: it cannot be opened, or is not a regular file. `pool` outlives the file.
  PlainFile(const std::string& path, arrow::MemoryPool* pool);
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;
  ~PlainFile() override;

  arrow::Status Close() override;
  bool closed() const override { return descriptor_ < 0; }
  arrow::Result<std::int64_t> Tell() const override { return at_; }
  arrow::Status Seek(std::int64_t position) override;
  arrow::Result<std::int64_t> GetSize() override { return size_; }
  arrow::Result<std::int64_t> Read(std::int64_t count, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t count) override;
  using RandomAccessFile::ReadAt;
  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t count, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position,
                                                       std::int64_t count) override;
  using RandomAccessFile::ReadAsync;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext& context,
                                                          std::int64_t position,
                                                          std::int64_t count) override;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext& context,
                                                          std::int64_t position, std::int64_t count,
                                                          bool may_be_short) override;
  std::int64_t size() const { return size_; }

 private:
  int descriptor_;
  std::int64_t size_ = 0;
  std::int64_t at_ = 0;
  arrow::MemoryPool* pool_;
};

}  // namespace parquet_source
