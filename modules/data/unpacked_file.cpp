module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <tessera/descriptor.hpp>
#include <tessera/limits.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import tessera.cache;
import :data_cache;
import :unpacked_file;

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t block_bytes = std::size_t{128} << 10;

/// The last bytes of a file of blocks; the positions of its blocks are before them.
struct BlockList {
  std::array<char, 16> magic = {'t', 'e', 's', 's', 'e', 'r', 'a', ' ',
                                'b', 'l', 'o', 'c', 'k', 's', ' ', '1'};
  std::uint64_t size = 0;          // bytes of the content
  std::uint64_t blocks = 0;        // of block_bytes, but the last one
  std::array<char, 32> hash = {};  // of the positions, the size and the number
};
static_assert(sizeof(BlockList) == 64);

std::array<char, 32> hash_of(const BlockList& list, std::span<const std::uint64_t> begins) {
  ContentHash hash;
  hash.add(std::as_bytes(begins));
  hash.add(std::as_bytes(std::span(&list.size, 1)));
  hash.add(std::as_bytes(std::span(&list.blocks, 1)));
  std::array<char, 32> hex{};
  std::ranges::copy(hash.hex(), hex.begin());
  return hex;
}

/// Of this version of the file: the system's own time of its last change, which no program can set,
/// is in it.
std::string key_of(const FileIdentity& identity, const std::string& version) {
  const std::string text = fmt::format(
      "{} {} {} {}.{} {}.{} {}{}", identity.size, identity.device, identity.inode,
      identity.modified_seconds, identity.modified_nanoseconds, identity.changed_seconds,
      identity.changed_nanoseconds, block_bytes, version.empty() ? "" : " " + version);
  return content_hash(std::as_bytes(std::span(text)));
}

struct Blocks {
  std::size_t size = 0;
  std::vector<std::uint64_t> begins;
};

bool read_at(int descriptor, std::size_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (count <= 0 && (count == 0 || errno != EINTR)) {
      return false;
    }
    if (count > 0) {
      offset += static_cast<std::size_t>(count);
      out = out.subspan(static_cast<std::size_t>(count));
    }
  }
  return true;
}

/// The positions of a file's blocks; nothing: there is no such file, or it is damaged.
std::optional<Blocks> blocks_of(const fs::path& file) {
  const Descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status{};
  if (!opened.is_open() || ::fstat(opened.value(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < static_cast<off_t>(sizeof(BlockList))) {
    return std::nullopt;
  }
  const std::size_t end = static_cast<std::size_t>(status.st_size) - sizeof(BlockList);
  BlockList list;
  if (!read_at(opened.value(), end, std::as_writable_bytes(std::span(&list, 1))) ||
      list.magic != BlockList{}.magic || list.blocks > end / sizeof(std::uint64_t)) {
    return std::nullopt;
  }
  Blocks blocks;
  blocks.size = list.size;
  blocks.begins.resize(list.blocks + 1);
  const std::size_t positions = blocks.begins.size() * sizeof(std::uint64_t);
  if (positions > end ||
      !read_at(opened.value(), end - positions, std::as_writable_bytes(std::span(blocks.begins))) ||
      hash_of(list, blocks.begins) != list.hash) {
    return std::nullopt;
  }
  return blocks;
}

/// Writes the content of a packed file in blocks.
class BlockWriter {
 public:
  BlockWriter(const std::string& path, const FilePacking& packing, fs::path made)
      : path_(path),
        reader_(packing.open()),
        made_(std::move(made)),
        out_(::open(made_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)),
        context_(::ZSTD_createCCtx(), &::ZSTD_freeCCtx) {
    if (!out_.is_open()) {
      cannot_write(errno);
    }
    require(context_ != nullptr, "zstd: no memory");
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, 1);
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  }
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;
  /// Removes what is not finished.
  ~BlockWriter() {
    if (!is_finished_) {
      std::error_code ignored;
      fs::remove(made_, ignored);
    }
  }

  void write_all() {
    BlockList list;
    std::vector<std::uint64_t> begins = {0};
    std::vector<std::byte> block(block_bytes);
    std::vector<std::byte> packed(::ZSTD_compressBound(block_bytes));
    for (std::size_t count = reader_->read(block); count > 0; count = reader_->read(block)) {
      const std::size_t bytes =
          ::ZSTD_compress2(context_.get(), packed.data(), packed.size(), block.data(), count);
      require(::ZSTD_isError(bytes) == 0, "zstd: a block cannot be compressed");
      write(std::span(packed).first(bytes));
      begins.push_back(begins.back() + bytes);
      list.size += count;
      report();
    }
    list.blocks = begins.size() - 1;
    list.hash = hash_of(list, begins);
    write(std::as_bytes(std::span(begins)));
    write(std::as_bytes(std::span(&list, 1)));
    is_finished_ = true;
  }

 private:
  [[noreturn]] void cannot_write(int code) const {
    throw CacheError(fmt::format("{} cannot be written ({}); set TESSERA_DATA_CACHE",
                                 made_.string(), reason_of(code)));
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(out_.value(), bytes.data(), bytes.size());
      if (count < 0 && errno != EINTR) {
        cannot_write(errno);
      }
      bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    }
  }

  void report() {
    if (const double waited = watch_.waited(); waited > Patience::reported_after && !reported_) {
      reported_ = true;
      log(LogLevel::warning,
          fmt::format("data: {} is unpacked once into {} ({:.0f}% in {:.0f} s)", shown(path_),
                      made_.parent_path().string(), reader_->done() * 100, waited));
    }
  }

  std::string path_;
  std::unique_ptr<ContentReader> reader_;
  fs::path made_;
  Descriptor out_;
  std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context_;
  Stopwatch watch_;
  bool reported_ = false;
  bool is_finished_ = false;
};

/// Waits until no other process makes the file, as long as the one that does makes progress.
void take(FileLock& lock, const fs::path& made) {
  for (std::uintmax_t before = 0;;) {
    Patience patience;
    const FileLock::State state =
        lock.take(patience, "unpacked data", "checks whether it makes progress");
    if (state == FileLock::State::held) {
      lock.sign();
      return;
    }
    if (state != FileLock::State::busy) {
      throw CacheError(fmt::format("cannot lock {} ({})", lock.path(), lock.problem()));
    }
    std::error_code error;
    const std::uintmax_t size = fs::file_size(made, error);
    if (error || size == before) {
      throw CacheError(fmt::format("{} has had the lock {} for {:.4g} s, and writes nothing",
                                   lock.holder(), lock.path(), patience.limit()));
    }
    before = size;
  }
}

}  // namespace

ContentReader::~ContentReader() = default;

UnpackedFile::UnpackedFile(const std::string& path, const FilePacking& packing,
                           const FileIdentity& identity)
    : path_(path) {
  try {
    const fs::path folder = data_cache();
    const fs::path kept = folder / (key_of(identity, packing.version) + ".blocks");
    std::optional<Blocks> blocks = blocks_of(kept);
    if (!blocks) {
      const fs::path made = fs::path(kept).replace_extension("made");
      FileLock lock = FileLock::of_file(fs::path(kept).replace_extension("lock").string());
      take(lock, made);
      blocks = blocks_of(kept);  // another process has made it
      if (!blocks) {
        BlockWriter(path, packing, made).write_all();
        fs::rename(made, kept);
        blocks = blocks_of(kept);
        remove_old_files(folder);
      }
    }
    if (!blocks) {
      throw CacheError(fmt::format("{} is damaged as soon as it is written", kept.string()));
    }
    kept_ = kept.string();
    size_ = blocks->size;
    begins_ = std::move(blocks->begins);
  } catch (const CacheError& error) {
    fail_input({.thing = path, .wrong = fmt::format("cannot be unpacked: {}", error.what())});
  } catch (const fs::filesystem_error& error) {
    fail_input({.thing = path, .wrong = fmt::format("cannot be unpacked: {}", error.what())});
  }
}

UnpackedReader::UnpackedReader(const UnpackedFile& file)
    : file_(file),
      descriptor_(::open(file.kept_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)),
      which_(file.begins_.size()) {
  if (descriptor_ < 0) {
    fail_input({.thing = file.path_,
                .wrong = fmt::format("its unpacked blocks cannot be read: {}: {}", file.kept_,
                                     reason_of(errno)),
                .advice = "start the run again: they are made again"});
  }
  use_kept_file(file.kept_);
}

UnpackedReader::~UnpackedReader() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

std::span<const std::byte> UnpackedReader::block(std::size_t which) {
  if (which == which_) {
    return block_;
  }
  which_ = file_.begins_.size();  // none, if this fails
  const std::size_t begin = file_.begins_[which];
  packed_.resize(file_.begins_[which + 1] - begin);
  block_.resize(std::min(block_bytes, file_.size_ - which * block_bytes));
  if (!read_at(descriptor_, begin, packed_) ||
      ::ZSTD_decompress(block_.data(), block_.size(), packed_.data(), packed_.size()) !=
          block_.size()) {
    fail_input({.thing = file_.path_,
                .wrong = fmt::format("its unpacked blocks are damaged: {}", file_.kept_),
                .advice = "remove that file, and start the run again: it is made again"});
  }
  which_ = which;
  return block_;
}

void UnpackedReader::read(std::size_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const std::span<const std::byte> rest =
        block(offset / block_bytes).subspan(offset % block_bytes);
    const std::size_t count = std::min(rest.size(), out.size());
    std::copy_n(rest.begin(), count, out.begin());
    offset += count;
    out = out.subspan(count);
  }
}

}  // namespace tessera::data
