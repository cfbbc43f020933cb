// parquet: files of Parquet and of Arrow (IPC files and streams, as Hugging Face's datasets keeps
// them) as records, by Apache Arrow's C++ library.
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "batches.hpp"

import tessera.base;
import tessera.plugin;
import tessera.sources;

namespace {

using namespace tessera;
using namespace tessera::sources;
using parquet_source::Batches;

using OpenFile = std::unique_ptr<Batches> (*)(const std::string& path,
                                              std::span<const std::string> needed);

/// Calls f, whose errors become those of the file.
template <class F>
auto of_file(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    fail_input({.thing = path, .wrong = error.what()});
  }
}

class TableRows final : public RecordStream {
 public:
  TableRows(std::string path, OpenFile open, std::span<const std::string> needed)
      : path_(std::move(path)), batches_(of_file(path_, [&] { return open(path_, needed); })) {}

  bool next(std::string& to) override {
    return of_file(path_, [&] {
      while (!rows_ || row_ == rows_->size()) {
        rows_.reset();  // before the next ones are read
        row_ = 0;
        rows_ = batches_->next();
        if (!rows_) {
          return false;
        }
      }
      try {
        rows_->write(row_, to);
      } catch (const parquet_source::Problem& problem) {
        throw parquet_source::Problem("row " + std::to_string(records_ + 1) + ": " +
                                      problem.what());
      }
      ++row_;
      ++records_;
      return true;
    });
  }
  double done() const override { return batches_->done(); }
  std::vector<std::string> left_out() const override { return batches_->left_out(); }

 private:
  std::string path_;
  std::unique_ptr<Batches> batches_;
  std::optional<parquet_source::Rows> rows_;
  std::int64_t row_ = 0;
  std::int64_t records_ = 0;
};

class TableSource final : public RecordSource {
 public:
  TableSource(OpenFile open, std::string (*sample)()) : open_(open), sample_(sample) {}
  std::unique_ptr<RecordStream> open(const std::string& path,
                                     std::span<const std::string> needed) const override {
    return std::make_unique<TableRows>(path, open_, needed);
  }
  std::string sample() const override { return sample_(); }

 private:
  OpenFile open_;
  std::string (*sample_)();
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  using namespace parquet_source;
  registrar.add<RecordSource>(
      "parquet", [] { return std::make_unique<TableSource>(open_parquet, parquet_sample); });
  for (const char* const name : {"arrow", "feather"}) {
    registrar.add<RecordSource>(
        name, [] { return std::make_unique<TableSource>(open_arrow, arrow_sample); });
  }
}
