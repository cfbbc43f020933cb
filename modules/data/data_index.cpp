module;
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import tessera.cache;
import :data_cache;
import :data_index;
import :unpacked_file;

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t least = std::size_t{4} << 20;  // bytes that are worth an index
constexpr std::size_t hash_size = 32;

std::string text_of(const struct stat& status) {
  return fmt::format("{} {} {} {}.{} {}.{};", status.st_size, status.st_dev, status.st_ino,
                     status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
                     status.st_ctim.tv_nsec);
}

/// The library that this code is in: another one may read in another way. Empty: unknown.
std::string own_library() {
  Dl_info info{};
  struct stat status{};
  if (::dladdr(reinterpret_cast<const void*>(&own_library), &info) == 0 ||
      info.dli_fname == nullptr || ::stat(info.dli_fname, &status) != 0) {
    return "";
  }
  return text_of(status);
}

std::string hash_of_bytes(std::string_view bytes) {
  return content_hash(std::as_bytes(std::span(bytes)));
}

fs::path file_of(const std::string& key) { return data_cache() / (key + ".index"); }

}  // namespace

DataIndex::DataIndex(std::span<const DataFile> files, std::string_view how) {
  std::size_t bytes = 0;
  std::string text = own_library();
  if (how.empty() || text.empty()) {
    return;
  }
  text += fmt::format("{};{};", how.size(), how);
  for (const DataFile& file : files) {
    struct stat status{};
    if (::stat(file.path().c_str(), &status) != 0) {
      return;  // whoever reads it finds out
    }
    bytes += file.size();
    text += fmt::format("{};{}{};", file.path(), text_of(status), packing_of(file.path()).version);
  }
  if (bytes >= least) {
    key_ = hash_of_bytes(text);
  }
}

std::optional<std::string> DataIndex::find() const {
  if (key_.empty()) {
    return std::nullopt;
  }
  try {
    const fs::path file = file_of(key_);
    std::error_code error;
    if (!fs::is_regular_file(fs::symlink_status(file, error))) {
      return std::nullopt;
    }
    std::string bytes = read_input(file.string());
    if (bytes.size() < hash_size ||
        bytes.substr(bytes.size() - hash_size) !=
            hash_of_bytes(std::string_view(bytes).substr(0, bytes.size() - hash_size))) {
      return std::nullopt;
    }
    use_kept_file(file);
    bytes.resize(bytes.size() - hash_size);
    return bytes;
  } catch (const CacheError&) {
    return std::nullopt;
  }
}

void DataIndex::keep(std::string_view bytes) const {
  if (key_.empty()) {
    return;
  }
  try {
    const fs::path file = file_of(key_);
    const std::string hash = hash_of_bytes(bytes);
    if (const std::string why =
            write_file(file.string(), std::vector<std::string_view>{bytes, hash});
        !why.empty()) {
      log(LogLevel::info, fmt::format("data: no index is kept: {}: {}", file.string(), why));
    }
    remove_old_files(file.parent_path());
  } catch (const CacheError& error) {
    log(LogLevel::info, fmt::format("data: no index is kept: {}", error.what()));
  }
}

void IndexWriter::text(std::string_view text) {
  number(std::uint64_t{text.size()});
  bytes_.append(text);
}

void IndexWriter::texts(const std::vector<std::string>& texts) {
  number(std::uint64_t{texts.size()});
  for (const std::string& one : texts) {
    text(one);
  }
}

void IndexWriter::counts(const std::map<std::string, std::int64_t>& counts) {
  number(std::uint64_t{counts.size()});
  for (const auto& [name, count] : counts) {
    text(name);
    number(count);
  }
}

void IndexReader::take(void* to, std::size_t bytes) {
  require(bytes <= rest_.size(), "index: it ends too early");
  if (bytes > 0) {
    std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }
}

void IndexReader::text(std::string& text) {
  std::uint64_t size = 0;
  number(size);
  require(size <= rest_.size(), "index: it ends too early");
  text = rest_.substr(0, size);
  rest_.remove_prefix(size);
}

void IndexReader::texts(std::vector<std::string>& texts) {
  std::uint64_t count = 0;
  number(count);
  texts.clear();
  for (std::uint64_t i = 0; i < count; ++i) {
    text(texts.emplace_back());
  }
}

void IndexReader::counts(std::map<std::string, std::int64_t>& counts) {
  std::uint64_t count = 0;
  number(count);
  counts.clear();
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string name;
    text(name);
    number(counts[name]);
  }
}

}  // namespace tessera::data
