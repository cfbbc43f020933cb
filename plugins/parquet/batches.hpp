// The batches of a file of Parquet or Arrow, one after the other.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "columns.hpp"

namespace parquet_source {

/// A file from its beginning to its end, in batches of bounded size. Its problems have no path.
/// Everything happens in the caller's thread, and takes at most 1 GiB of Arrow's memory.
class Batches {
 public:
  virtual ~Batches() = default;
  /// The rows that come next; nothing: there are no more. Throws Problem, which says in which row
  /// group or batch.
  virtual std::optional<Rows> next() = 0;
  /// The share of the file that was read.
  virtual double done() const = 0;
  virtual const std::vector<std::string>& left_out() const = 0;
};

/// Throw Problem: the file cannot be read, is none of these, or has no columns for records.
std::unique_ptr<Batches> open_parquet(const std::string& path, std::span<const std::string> needed);
/// Arrow's IPC, as a file or as a stream.
std::unique_ptr<Batches> open_arrow(const std::string& path, std::span<const std::string> needed);

/// Small files of both formats.
std::string parquet_sample();
std::string arrow_sample();

}  // namespace parquet_source
