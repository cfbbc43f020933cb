#include <arrow/ipc/options.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/type.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "batches.hpp"
#include "memory.hpp"
#include "plain_file.hpp"

namespace parquet_source {
namespace {

class ArrowBatches final : public Batches {
 public:
  ArrowBatches(const std::string& path, std::span<const std::string> needed)
      : file_(std::make_shared<PlainFile>(path, memory_.pool())) {
    const std::string magic = bytes_at(0, 6);
    if (magic.starts_with("FEA1")) {
      throw Problem("it is Feather of version 1 (expected version 2, which is Arrow's IPC)");
    }
    is_file_ = magic == "ARROW1";
    // Once to know the columns, and again for those that are read.
    columns_ = columns_of(*open({}), needed);
    open(columns_.read);
  }

  std::optional<Rows> next() override {
    try {
      for (;;) {
        const std::shared_ptr<arrow::RecordBatch> batch = read();
        if (batch == nullptr) {
          return std::nullopt;
        }
        check(batch->ValidateFull());
        ++batch_;
        if (batch->num_rows() > 0) {
          return Rows(batch);
        }
      }
    } catch (const Problem& error) {
      throw Problem("batch " + std::to_string(batch_ + 1) + ": " + error.what());
    } catch (const std::exception& error) {
      throw Problem("batch " + std::to_string(batch_ + 1) + ": " + one_line(error.what()));
    }
  }

  double done() const override {
    if (is_file_) {
      const int count = file_reader_->num_record_batches();
      return count > 0 ? static_cast<double>(batch_) / count : 1;
    }
    const auto at = file_->Tell();
    return at.ok() && file_->size() > 0
               ? static_cast<double>(*at) / static_cast<double>(file_->size())
               : 1;
  }

  const std::vector<std::string>& left_out() const override { return columns_.left_out; }

 private:
  std::shared_ptr<arrow::Schema> open(const std::vector<int>& columns) {
    arrow::ipc::IpcReadOptions options;
    options.memory_pool = memory_.pool();
    options.use_threads = false;
    options.included_fields = columns;
    if (is_file_) {
      auto made = arrow::ipc::RecordBatchFileReader::Open(file_.get(), options);
      check(made.status());
      file_reader_ = *std::move(made);
      return file_reader_->schema();
    }
    check(file_->Seek(0));
    auto made = arrow::ipc::RecordBatchStreamReader::Open(file_.get(), options);
    check(made.status());
    stream_reader_ = *std::move(made);
    return stream_reader_->schema();
  }

  /// Null: there is no further one.
  std::shared_ptr<arrow::RecordBatch> read() {
    if (is_file_) {
      if (batch_ == file_reader_->num_record_batches()) {
        return nullptr;
      }
      auto batch = file_reader_->ReadRecordBatch(batch_);
      check(batch.status());
      return *std::move(batch);
    }
    std::shared_ptr<arrow::RecordBatch> batch;
    check(stream_reader_->ReadNext(&batch));
    if (batch == nullptr) {
      check_end();
    }
    return batch;
  }

  /// A stream that was cut between two batches looks like one that ends there, but for its mark.
  void check_end() {
    const auto at = file_->Tell();
    check(at.status());
    constexpr std::string_view mark("\xff\xff\xff\xff\0\0\0\0", 8);
    const std::string before = *at < 8 ? std::string() : bytes_at(*at - 8, 8);
    if (before != mark) {
      throw Problem(
          "the stream ends without its mark: the file was cut, or not written to its end");
    }
  }

  std::string bytes_at(std::int64_t position, std::int64_t count) {
    std::string bytes(static_cast<std::size_t>(count), '\0');
    const auto got = file_->ReadAt(position, count, bytes.data());
    check(got.status());
    bytes.resize(static_cast<std::size_t>(*got));
    return bytes;
  }

  FileMemory memory_;
  std::shared_ptr<PlainFile> file_;
  bool is_file_ = false;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> file_reader_;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> stream_reader_;
  Columns columns_;
  int batch_ = 0;  // the next one
};

}  // namespace

std::unique_ptr<Batches> open_arrow(const std::string& path, std::span<const std::string> needed) {
  return std::make_unique<ArrowBatches>(path, needed);
}

}  // namespace parquet_source
