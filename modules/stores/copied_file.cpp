module;
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>
module tessera.stores;

import tessera.base;
import :copied_file;
import :object_hash;

namespace tessera::stores {
namespace {

namespace fs = std::filesystem;

/// Bytes between two marks: what a process that is killed fetches twice.
constexpr std::uint64_t bytes_of_mark = std::uint64_t{32} << 20;

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  throw StoreError(
      error == ENOSPC || error == EDQUOT ? StoreFailure::no_space : StoreFailure::wrong_answer,
      {.thing = path,
       .wrong = "cannot be written: " + reason_of(error),
       .advice = "make room, or name another folder in TESSERA_STORE_CACHE"});
}

/// A file that is being fetched. Beside it is its mark: how many of its bytes are on the disk, and
/// their hash, so that bytes that a crash has damaged are not used.
class PartialFile {
 public:
  PartialFile(std::string path, const ObjectFacts& facts)
      : path_(std::move(path)),
        mark_(path_ + ".mark"),
        file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)),
        hash_(facts) {
    if (file_ < 0) {
      fail_to_write(path_, errno);
    }
    resume(facts.size);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() { ::close(file_); }

  std::uint64_t size() const { return size_; }

  void add(std::span<const std::byte> bytes) {
    hash_.add(bytes);
    content_.add(bytes);
    while (!bytes.empty()) {
      const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (count < 0 && errno != EINTR) {
        fail_to_write(path_, errno);
      }
      if (count > 0) {
        size_ += static_cast<std::uint64_t>(count);
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      }
    }
    if (size_ - marked_ >= bytes_of_mark) {
      sync();
      const std::string why = write_file(mark_, fmt::format("{} {}\n", size_, content_.hex()));
      marked_ = why.empty() ? size_ : marked_;
    }
  }
  /// Why it is not the object; empty: it has its name now.
  std::string complete(const std::string& place) {
    std::string wrong = hash_.wrong();
    if (wrong.empty()) {
      sync();
      fs::create_directories(fs::path(place).parent_path());
      if (std::rename(path_.c_str(), place.c_str()) != 0) {
        fail_to_write(place, errno);
      }
    } else {
      ::unlink(path_.c_str());
    }
    ::unlink(mark_.c_str());
    return wrong;
  }

 private:
  void sync() {
    if (::fdatasync(file_) != 0) {
      fail_to_write(path_, errno);
    }
  }
  /// Takes what an earlier process has fetched, as far as its mark goes.
  void resume(std::uint64_t size) {
    std::uint64_t marked = 0;
    std::string hash;
    if (std::ifstream in(mark_); in >> marked >> hash && marked <= size) {
      std::vector<std::byte> block(std::size_t{1} << 20);
      ContentHash content;
      std::uint64_t done = 0;
      while (done < marked) {
        const std::uint64_t wanted = std::min<std::uint64_t>(block.size(), marked - done);
        const ssize_t count = ::pread(file_, block.data(), wanted, static_cast<off_t>(done));
        if (count <= 0) {
          break;
        }
        content.add(std::span(block).first(static_cast<std::size_t>(count)));
        done += static_cast<std::uint64_t>(count);
      }
      if (done == marked && content.hex() == hash) {
        take_marked(marked, block);
      }
    }
    if (::ftruncate(file_, static_cast<off_t>(size_)) != 0) {
      fail_to_write(path_, errno);
    }
  }
  void take_marked(std::uint64_t marked, std::span<std::byte> block) {
    while (size_ < marked) {
      const std::uint64_t wanted = std::min<std::uint64_t>(block.size(), marked - size_);
      const ssize_t count = ::pread(file_, block.data(), wanted, static_cast<off_t>(size_));
      if (count <= 0) {
        fail_to_write(path_, count == 0 ? EIO : errno);
      }
      const std::span<const std::byte> bytes = block.first(static_cast<std::size_t>(count));
      hash_.add(bytes);
      content_.add(bytes);
      size_ += bytes.size();
    }
    marked_ = size_;
  }

  std::string path_;
  std::string mark_;
  int file_;
  ObjectHash hash_;
  ContentHash content_;
  std::uint64_t size_ = 0;
  std::uint64_t marked_ = 0;
};

}  // namespace

void copy_object(OpenStore& store, const ListedObject& object, const std::string& place,
                 const std::string& partial) {
  constexpr int most_tries = 2;
  for (int tries = 1;; ++tries) {
    PartialFile file(partial, object.facts);
    const std::uint64_t begin = file.size();
    store.read(object.name, object.facts, {.begin = begin, .count = object.facts.size - begin},
               [&](std::span<const std::byte> bytes) { file.add(bytes); });
    const std::string wrong = file.complete(place);
    if (wrong.empty()) {
      return;
    }
    if (tries == most_tries) {
      throw StoreError(StoreFailure::wrong_answer,
                       {.thing = (store.address() / object.name).text(),
                        .wrong = wrong + fmt::format(" (fetched {} times)", tries),
                        .advice = "the store, or something on the way, changes files: do not use "
                                  "it, and tell who runs it"});
    }
  }
}

}  // namespace tessera::stores
