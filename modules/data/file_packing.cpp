module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
module tessera.data;

import tessera.base;
import tessera.sources;
import :unpacked_file;
import :unpacker;

namespace tessera::data {
namespace {

class CompressedContent final : public ContentReader {
 public:
  CompressedContent(const std::string& path, Compression compression)
      : unpacker_(path, compression) {
    std::error_code ignored;
    size_ = std::filesystem::file_size(path, ignored);
  }
  std::size_t read(std::span<std::byte> out) override { return unpacker_.read(out); }
  double done() const override {
    return static_cast<double>(unpacker_.packed()) /
           static_cast<double>(std::max<std::uintmax_t>(size_, 1));
  }

 private:
  Unpacker unpacker_;
  std::uintmax_t size_ = 0;
};

class SourceContent final : public ContentReader {
 public:
  SourceContent(const std::string& path, const std::string& source)
      : lines_(path, source, RecordForms::names()) {}
  std::size_t read(std::span<std::byte> out) override { return lines_.read(out); }
  double done() const override { return lines_.done(); }

 private:
  sources::RecordLines lines_;
};

}  // namespace

FilePacking packing_of(const std::string& path) {
  if (const Compression compression = compression_of(path); compression != Compression::none) {
    return {.open = [=] { return std::make_unique<CompressedContent>(path, compression); }};
  }
  if (const std::string missing = sources::missing_source(path); !missing.empty()) {
    fail_input({.thing = path, .wrong = missing});
  }
  const std::string source = sources::source_of(path);
  if (source.empty()) {
    return {};
  }
  // Every rank uses the plugin, so that all ranks have the same ones, whoever unpacks.
  static_cast<void>(sources::load_source(source));
  return {.version = sources::source_version(source),
          .open = [=] { return std::make_unique<SourceContent>(path, source); }};
}

bool is_of_source(const std::string& path) {
  return !sources::source_of(path).empty() || !sources::missing_source(path).empty();
}

DataFile text_file(const std::string& path) {
  if (is_of_source(path)) {
    fail_input({.thing = path,
                .wrong = "is a file of records (expected a text)",
                .advice = "name it where records are read: data.jsonl, or --jsonl of evaluate"});
  }
  return DataFile::content_of(path);
}

}  // namespace tessera::data
