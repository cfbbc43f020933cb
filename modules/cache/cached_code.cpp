// Code in a folder: one process makes it, and a hash beside it says that it is whole.
module;
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <utility>
#include <vector>
module tessera.cache;

import tessera.base;
import tessera.plugin;

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Somebody was waited for in vain: whoever comes next need not wait as long again.
class WaitTimeout : public CacheError {
 public:
  using CacheError::CacheError;
};

constexpr std::size_t most_kept = 200;

/// The folder of the cache. CacheError: it cannot be used for code. Error (input): others could
/// change it.
fs::path code_folder(bool is_executed) {
  fs::path folder = cache_folder(
      {.what = "compiled kernels", .variable = "TESSERA_KERNEL_CACHE", .folder = "kernels"});
  struct statvfs system{};
  if (is_executed && statvfs(folder.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0) {
    throw CacheError(
        fmt::format("{} is on a file system from which no code is loaded (noexec); set "
                    "TESSERA_KERNEL_CACHE",
                    folder.string()));
  }
  return folder;
}

/// The bytes of a plain file; none of anything else, which is not opened: a pipe would block.
std::string read(const fs::path& file) {
  std::ostringstream bytes;
  std::error_code ignored;
  if (!fs::is_regular_file(fs::symlink_status(file, ignored))) {
    return "";
  }
  bytes << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

void write(const fs::path& file, std::string_view text) {
  if (!write_file(file.string(), text).empty()) {
    throw CacheError(fmt::format("cannot write {}", file.string()));
  }
}

std::string hash_of(std::string_view text) {
  return content_hash(std::as_bytes(std::span(text.data(), text.size())));
}

/// Locks a file: of several processes that need it, one makes it, and the others wait.
void lock(FileLock& file, const std::string& otherwise) {
  Patience patience;
  const FileLock::State state = file.take(patience, "compiled kernels", otherwise);
  if (state == FileLock::State::held) {
    file.sign();
  } else if (state == FileLock::State::busy) {
    throw WaitTimeout(fmt::format("{} has had the lock {} for {:.4g} s", file.holder(), file.path(),
                                  patience.limit()));
  } else {
    throw CacheError(fmt::format("cannot lock {} ({})", file.path(), file.problem()));
  }
}

/// A fresh folder beside a file, which goes away with its content.
class Scratch {
 public:
  explicit Scratch(const fs::path& beside) {
    std::string name = beside.string() + ".XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw CacheError(fmt::format("cannot make a folder in {} ({})", beside.parent_path().string(),
                                   std::strerror(errno)));
    }
    folder_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    remove_folder(folder_.string(), [](const std::string&) { return true; });
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

void make(const CachedCode& code, const fs::path& file) {
  const Scratch scratch(file);
  const fs::path made = scratch.folder() / ("code." + code.extension);
  const CompileOutcome result = code.make(made.string());
  if (result.late) {
    throw WaitTimeout(result.missing);
  }
  if (!result.missing.empty()) {
    throw CacheError(result.missing);
  }
  // In this order, so that a file without its hash is one that was not finished.
  const std::string bytes = read(made);
  fs::permissions(made, fs::perms::owner_all);
  fs::rename(made, file);
  const fs::path sum = scratch.folder() / "code.sum";
  write(sum, hash_of(bytes));
  fs::rename(sum, fs::path(file).replace_extension("sum"));
}

/// Keeps the files that were used last.
void remove_old(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path kind = entry.path().extension();
    if (entry.is_regular_file() && kind != ".sum" && kind != ".lock") {
      files.emplace_back(entry.last_write_time(), entry.path());
    }
  }
  if (files.size() <= most_kept) {
    return;
  }
  std::ranges::sort(files, std::greater());
  for (const auto& [time, file] : std::span(files).subspan(most_kept)) {
    std::error_code ignored;
    fs::remove(file, ignored);
    for (const char* const kind : {"sum", "lock"}) {
      fs::remove(fs::path(file).replace_extension(kind), ignored);
    }
  }
}

std::string used(const CachedCode& code) {
  const fs::path folder = code_folder(code.is_executed);
  const fs::path file = folder / (hash_of(code.key) + "." + code.extension);
  FileLock one_at_a_time = FileLock::of_file(fs::path(file).replace_extension("lock").string());
  lock(one_at_a_time, code.otherwise);
  const std::string sum = read(fs::path(file).replace_extension("sum"));
  if (sum.empty() || hash_of(read(file)) != sum) {
    make(code, file);
    try_side_work(SideWork::upkeep, "kernel cache", [&] { remove_old(folder); });
  } else {
    std::error_code ignored;
    fs::last_write_time(file, fs::file_time_type::clock::now(), ignored);
  }
  return code.use(file.string());
}

}  // namespace

std::string use_cached_code(const CachedCode& code) {
  static std::mutex mutex;  // ranks that are threads
  static std::string waited_in_vain;
  const std::lock_guard guard(mutex);
  if (!waited_in_vain.empty()) {
    return waited_in_vain;
  }
  try {
    return used(code);
  } catch (const WaitTimeout& error) {
    waited_in_vain = error.what();
    return waited_in_vain;
  } catch (const CacheError& error) {
    return error.what();
  } catch (const fs::filesystem_error& error) {
    return error.what();
  }
}

}  // namespace tessera
