// Columns of Arrow as the members of records.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tessera/record_text.hpp>
#include <vector>

namespace arrow {
class RecordBatch;
class Schema;
class Status;
}  // namespace arrow

namespace parquet_source {

/// What is wrong with a file, without its path.
class Problem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A text of the library in one line and of bounded size: it may quote the file.
std::string one_line(std::string_view text);
/// Throws Problem with the text of a status that is an error.
void check(const arrow::Status& status);

/// Which columns of a file are members of its records.
struct Columns {
  std::vector<int> read;              // numbers, in the order of the file
  std::vector<std::string> left_out;  // "the column 'photo' (binary)"
};

/// Columns of numbers, truths and texts, and lists and structures of them. Others, and lists of
/// fractions, which are no texts, are left out where `needed` does not name them. Throws Problem: a
/// needed column is of another type; two columns have one name; there is none that can be read.
Columns columns_of(const arrow::Schema& schema, std::span<const std::string> needed);

/// The rows of a batch as objects of JSON: a member for each column that has a value there.
class Rows {
 public:
  /// `batch`: has only columns that can be read.
  explicit Rows(std::shared_ptr<arrow::RecordBatch> batch);
  Rows(Rows&&) noexcept;
  Rows& operator=(Rows&&) noexcept;
  ~Rows();

  std::int64_t size() const;
  /// Throws Problem: a number is not finite.
  void write(std::int64_t row, std::string& to) const;

 private:
  struct Column;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<std::unique_ptr<Column>> columns_;

  friend struct ColumnWriter;
};

}  // namespace parquet_source
