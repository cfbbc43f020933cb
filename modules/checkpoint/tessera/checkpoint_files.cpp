module;
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import tessera.stores;
import :checkpoint_files;
import :checkpoint_index;
import :file_bytes;
import :mapped_file;
import :store_place;

namespace tessera::checkpoint_detail {
namespace {

constexpr std::size_t largest_index = std::size_t{1} << 30;

class LocalFile final : public DataFile {
 public:
  explicit LocalFile(std::string path)
      : path_(std::move(path)), mapped_(std::make_shared<const MappedFile>(path_)) {}

  std::uint64_t size() const override { return mapped_->bytes().size(); }
  std::string front(std::size_t count) const override { return read_front(path_, count); }
  LoadedBytes load(std::uint64_t begin, std::size_t count, std::size_t /*first*/,
                   std::size_t /*last*/) const override {
    return {mapped_, mapped_->bytes().subspan(begin, count)};
  }
  bool stays() const override { return true; }
  std::optional<std::string> local_path() const override { return path_; }

 private:
  std::string path_;
  std::shared_ptr<const MappedFile> mapped_;
};

class FolderFiles final : public CheckpointFiles {
 public:
  explicit FolderFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  bool has_index() const override {
    std::error_code ignored;
    return std::filesystem::exists(folder_ / index_name, ignored);
  }
  std::string index_text() const override {
    const MappedFile file(path_of(index_name));
    const std::span<const std::byte> bytes = file.bytes();
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    file.check_intact();
    return text;
  }
  std::string path_of(const std::string& name) const override { return (folder_ / name).string(); }
  Size size_of(const std::string& name) const override {
    std::error_code problem;
    const std::uintmax_t bytes = std::filesystem::file_size(folder_ / name, problem);
    return problem ? Size{0, problem.message()} : Size{bytes, ""};
  }
  std::unique_ptr<DataFile> open(const std::string& name) const override {
    return std::make_unique<LocalFile>(path_of(name));
  }

 private:
  std::filesystem::path folder_;
};

/// Memory for a range, of which only the pages that are filled exist.
class RangeMemory final : public FileBytes {
 public:
  RangeMemory(const std::string& path, std::size_t count) : count_(count) {
    if (count == 0) {
      return;
    }
    data_ = ::mmap(nullptr, count, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      fail({.thing = path, .wrong = fmt::format("there is no memory for {} bytes of it", count)});
    }
  }
  RangeMemory(const RangeMemory&) = delete;
  RangeMemory& operator=(const RangeMemory&) = delete;
  ~RangeMemory() override {
    if (data_ != nullptr) {
      ::munmap(data_, count_);
    }
  }

  std::span<std::byte> writable() { return {static_cast<std::byte*>(data_), count_}; }
  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), count_};
  }
  void check_intact() const override {}  // it is this process' own memory
  /// They go with the object, which lives no longer than they are read.
  void drop(std::span<const std::byte> /*bytes*/) const override {}

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

class StoredObject final : public DataFile {
 public:
  StoredObject(std::shared_ptr<stores::OpenStore> store, std::string name,
               stores::ObjectFacts facts)
      : store_(std::move(store)), name_(std::move(name)), facts_(std::move(facts)) {}

  std::uint64_t size() const override { return facts_.size; }
  std::string front(std::size_t count) const override {
    std::string front(std::min<std::uint64_t>(count, facts_.size), '\0');
    store_->read(name_, facts_, 0, std::as_writable_bytes(std::span(front)));
    return front;
  }
  LoadedBytes load(std::uint64_t begin, std::size_t count, std::size_t first,
                   std::size_t last) const override {
    auto memory = std::make_shared<RangeMemory>((store_->address() / name_).text(), count);
    store_->read(name_, facts_, begin + first, memory->writable().subspan(first, last - first));
    const std::span<const std::byte> bytes = memory->bytes();
    return {std::move(memory), bytes};
  }
  bool stays() const override { return false; }
  std::optional<std::string> local_path() const override { return std::nullopt; }

 private:
  std::shared_ptr<stores::OpenStore> store_;
  std::string name_;
  stores::ObjectFacts facts_;
};

class StoreFiles final : public CheckpointFiles {
 public:
  explicit StoreFiles(const stores::Address& address)
      : store_(std::make_shared<stores::OpenStore>(address)) {}

  bool has_index() const override {
    try {
      static_cast<void>(store_->facts(index_name));
      return true;
    } catch (const stores::StoreError& error) {
      if (error.failure() == stores::StoreFailure::not_there) {
        return false;
      }
      throw;
    }
  }
  std::string index_text() const override { return store_->text(index_name, largest_index); }
  std::string path_of(const std::string& name) const override {
    return (store_->address() / name).text();
  }
  Size size_of(const std::string& name) const override {
    const std::lock_guard lock(mutex_);
    if (!listed_) {
      std::map<std::string, stores::ObjectFacts> all;
      for (stores::ListedObject& object : store_->list()) {
        all.emplace(std::move(object.name), std::move(object.facts));
      }
      listed_ = std::move(all);
    }
    const auto found = listed_->find(name);
    return found == listed_->end() ? Size{0, "it is not there"} : Size{found->second.size, ""};
  }
  std::unique_ptr<DataFile> open(const std::string& name) const override {
    return std::make_unique<StoredObject>(store_, name, store_->facts(name));
  }

 private:
  std::shared_ptr<stores::OpenStore> store_;
  mutable std::mutex mutex_;
  mutable std::optional<std::map<std::string, stores::ObjectFacts>> listed_;
};

}  // namespace

DataFile::~DataFile() = default;
CheckpointFiles::~CheckpointFiles() = default;

std::unique_ptr<CheckpointFiles> CheckpointFiles::at(const std::string& place) {
  if (const std::optional<stores::Address> address = address_of(place)) {
    return std::make_unique<StoreFiles>(*address);
  }
  return std::make_unique<FolderFiles>(place);
}

}  // namespace tessera::checkpoint_detail
