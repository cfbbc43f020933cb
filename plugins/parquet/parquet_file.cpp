#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "batches.hpp"
#include "memory.hpp"
#include "plain_file.hpp"

namespace parquet_source {
namespace {

constexpr std::int64_t batch_bytes = std::int64_t{8} << 20;  // of a batch, about
constexpr std::int64_t most_rows = 4096;
constexpr std::int64_t stream_bytes = std::int64_t{256} << 10;  // of a column that is read

/// Calls f, of which Parquet's exceptions become problems that begin with `where`.
template <class F>
auto guarded(const std::string& where, const F& f) {
  const auto problem = [&](const std::string& text) {
    return Problem(where.empty() ? text : where + ": " + text);
  };
  try {
    return f();
  } catch (const Problem& error) {
    throw problem(error.what());
  } catch (const parquet::ParquetStatusException& error) {
    try {
      check(error.status());
    } catch (const Problem& own) {
      throw problem(own.what());
    }
    throw problem(one_line(error.what()));
  } catch (const std::exception& error) {
    throw problem(one_line(error.what()));
  }
}

class ParquetBatches final : public Batches {
 public:
  ParquetBatches(const std::string& path, std::span<const std::string> needed) {
    guarded("", [&] { open(path, needed); });
  }

  std::optional<Rows> next() override {
    for (;;) {
      if (batches_ == nullptr) {
        if (group_ == reader_->num_row_groups()) {
          return std::nullopt;
        }
        guarded(where(), [&] { open_group(); });
      }
      std::shared_ptr<arrow::RecordBatch> batch;
      guarded(where(), [&] {
        check(batches_->ReadNext(&batch));
        if (batch) {
          check(batch->ValidateFull());  // a damaged page may have places outside a dictionary
        }
      });
      if (batch && batch->num_rows() > 0) {
        rows_ += batch->num_rows();
        if (rows_ > expected_) {
          refuse_rows();
        }
        all_rows_ += batch->num_rows();
        return Rows(std::move(batch));
      }
      if (rows_ != expected_) {
        refuse_rows();
      }
      batches_.reset();
      ++group_;
    }
  }

  double done() const override {
    const auto rows = static_cast<double>(reader_->parquet_reader()->metadata()->num_rows());
    return rows > 0 ? static_cast<double>(all_rows_) / rows : 1;
  }

  const std::vector<std::string>& left_out() const override { return columns_.left_out; }

 private:
  std::string where() const { return "row group " + std::to_string(group_ + 1); }

  [[noreturn]] void refuse_rows() const {
    throw Problem(where() + ": it has another number of rows than the file's end says (expected " +
                  std::to_string(expected_) + ", got " + (rows_ > expected_ ? "at least " : "") +
                  std::to_string(rows_) + ")");
  }

  void open(const std::string& path, std::span<const std::string> needed) {
    const auto file = std::make_shared<PlainFile>(path, memory_.pool());
    parquet::ReaderProperties properties(memory_.pool());
    properties.enable_buffered_stream();
    properties.set_buffer_size(stream_bytes);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(file, properties));
    auto made = builder.memory_pool(memory_.pool())->properties(arrow_properties)->Build();
    check(made.status());
    reader_ = *std::move(made);
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema));
    columns_ = columns_of(*schema, needed);
    // Of nested columns, the reader wants the number of each leaf.
    const parquet::SchemaDescriptor& all = *reader_->parquet_reader()->metadata()->schema();
    const std::set<int> read(columns_.read.begin(), columns_.read.end());
    for (int leaf = 0; leaf < all.num_columns(); ++leaf) {
      if (read.contains(all.group_node()->FieldIndex(*all.GetColumnRoot(leaf)))) {
        leaves_.push_back(leaf);
      }
    }
    check_rows();
  }

  /// The library reads as many rows of a group as its metadata says, and does not ask whether there
  /// are more.
  void check_rows() const {
    const parquet::FileMetaData& metadata = *reader_->parquet_reader()->metadata();
    std::int64_t rows = 0;
    for (int i = 0; i < metadata.num_row_groups(); ++i) {
      const auto group = metadata.RowGroup(i);
      const std::int64_t own = group->num_rows();
      if (own < 0 || own > metadata.num_rows() - rows) {
        refuse_number(rows + own);
      }
      rows += own;
      for (const int leaf : leaves_) {
        if (metadata.schema()->Column(leaf)->max_repetition_level() == 0 &&
            group->ColumnChunk(leaf)->num_values() != own) {
          throw Problem(
              "row group " + std::to_string(i + 1) +
              ": a column has another number of values than the group has rows (expected " +
              std::to_string(own) + ", got " +
              std::to_string(group->ColumnChunk(leaf)->num_values()) + ")");
        }
      }
    }
    if (rows != metadata.num_rows()) {
      refuse_number(rows);
    }
  }

  [[noreturn]] void refuse_number(std::int64_t rows) const {
    throw Problem("its row groups have another number of rows than its end says (expected " +
                  std::to_string(reader_->parquet_reader()->metadata()->num_rows()) + ", got " +
                  std::to_string(rows) + ")");
  }

  void open_group() {
    const auto group = reader_->parquet_reader()->metadata()->RowGroup(group_);
    expected_ = group->num_rows();
    rows_ = 0;
    std::int64_t bytes = 0;
    for (const int leaf : leaves_) {
      bytes += std::clamp<std::int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0,
                                        std::int64_t{1} << 40);
    }
    const std::int64_t of_row = bytes / std::max<std::int64_t>(expected_, 1) + 1;
    reader_->set_batch_size(std::clamp<std::int64_t>(batch_bytes / of_row, 1, most_rows));
    auto batches = reader_->GetRecordBatchReader({group_}, leaves_);
    check(batches.status());
    batches_ = *std::move(batches);
  }

  FileMemory memory_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  Columns columns_;
  std::vector<int> leaves_;
  int group_ = 0;
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of the row group
  std::int64_t expected_ = 0;                          // rows of it
  std::int64_t rows_ = 0;                              // of it that were read
  std::int64_t all_rows_ = 0;
};

}  // namespace

std::unique_ptr<Batches> open_parquet(const std::string& path,
                                      std::span<const std::string> needed) {
  return std::make_unique<ParquetBatches>(path, needed);
}

}  // namespace parquet_source
