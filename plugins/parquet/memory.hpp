// What Arrow may take for one file.
#pragma once
#include <arrow/memory_pool.h>

#include <cstdint>

namespace parquet_source {

/// Memory that is counted for one file alone, and ends at a limit.
class FileMemory {
 public:
  arrow::MemoryPool* pool() { return &limited_; }

 private:
  static constexpr std::int64_t most = std::int64_t{1} << 30;  // bytes
  arrow::ProxyMemoryPool own_{arrow::system_memory_pool()};
  arrow::CappedMemoryPool limited_{&own_, most};
};

}  // namespace parquet_source
