module;
#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/content_hash.hpp>
#include <tessera/limits.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.stores;

import tessera.base;
import tessera.cache;
import :file_copy;

namespace tessera::stores {

namespace fs = std::filesystem;

/// Says that a copy is used, to who makes room: a lock that processes share.
class LocalCopy::Use {
 public:
  explicit Use(const fs::path& folder) {
    for (;;) {
      fs::create_directories(folder);
      const std::string path = (folder / "used").string();
      file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (file_ < 0) {
        fail_input({.thing = path, .wrong = "cannot be opened: " + reason_of(errno)});
      }
      ::flock(file_, LOCK_SH);  // where the file system has no locks, nothing is removed either
      struct stat mine{};
      struct stat there{};
      if (::fstat(file_, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
          mine.st_ino == there.st_ino) {
        ::futimens(file_, nullptr);
        return;
      }
      ::close(file_);  // it was removed meanwhile
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { ::close(file_); }

 private:
  int file_ = -1;
};

namespace {

constexpr std::string_view removed_mark = ".removed";

/// What there is of a copy: its files, and what has become of them.
class CopyFolder {
 public:
  explicit CopyFolder(fs::path folder) : folder_(std::move(folder)) {}
  fs::path files() const { return folder_ / "files"; }
  fs::path file(const std::string& name) const { return files() / name; }
  fs::path partial(const std::string& name) const {
    return folder_ / "partial" / content_hash(std::as_bytes(std::span(name)));
  }
  FileLock lock() const { return FileLock::of_file((folder_ / "lock").string()); }

  /// Size and time of the last change of a file; nothing: there is none.
  static std::optional<std::string> state_of(const fs::path& path) {
    struct stat facts{};
    if (::lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
      return std::nullopt;
    }
    return fmt::format("{} {}.{:09}", facts.st_size, facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
  }
  /// A file's record, which its copy gets when it is right.
  fs::path record(const std::string& name) const { return partial(name).string() + ".done"; }
  bool has(const ListedObject& object) const {
    const std::optional<std::string> state = state_of(file(object.name));
    std::ifstream in(record(object.name));
    std::string recorded;
    return state && std::getline(in, recorded) && recorded == *state;
  }
  void keep_record(const std::string& name) const {
    if (const std::string why =
            write_file(record(name).string(), state_of(file(name)).value_or("") + "\n");
        !why.empty()) {
      throw StoreError(StoreFailure::no_space,
                       {.thing = record(name).string(), .wrong = "cannot be written: " + why});
    }
  }

 private:
  fs::path folder_;
};

/// Copies of other addresses, which may be removed.
class CopyCache {
 public:
  CopyCache(fs::path folder, const fs::path& used) : folder_(std::move(folder)), used_(used) {}

  /// Removes copies until there is room. StoreError (no_space): there is not.
  void make_room(std::uint64_t bytes, std::uint64_t most, const Address& address) {
    std::vector<CachedCopy> copies = all();
    std::uint64_t kept = 0;
    for (const CachedCopy& copy : copies) {
      kept += copy.bytes;
    }
    const auto fits = [&] { return (most == 0 || kept + bytes <= most) && bytes <= available(); };
    for (const CachedCopy& copy : copies) {
      if (fits()) {
        return;
      }
      kept -= remove(copy.folder) ? copy.bytes : 0;
    }
    if (!fits()) {
      const bool by_limit = most != 0 && kept + bytes > most;
      throw StoreError(
          StoreFailure::no_space,
          {.thing = address.text(),
           .wrong = fmt::format("there is no room for its copy in {}", folder_.string()),
           .expected = format_bytes(bytes),
           .got = format_bytes(by_limit ? most - std::min(most, kept) : available()),
           .advice = by_limit ? "raise TESSERA_STORE_CACHE_GIB"
                              : "make room, or name another folder in TESSERA_STORE_CACHE"});
    }
  }

 private:
  struct CachedCopy {
    fs::path folder;
    std::uint64_t bytes = 0;
    std::int64_t used = 0;
  };

  std::uint64_t available() const {
    std::error_code error;
    const fs::space_info space = fs::space(folder_, error);
    return error ? UINT64_MAX : space.available;
  }
  /// All but the one that is fetched, the ones used longest ago first.
  std::vector<CachedCopy> all() const {
    std::vector<CachedCopy> copies;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      if (entry.path() == used_ || !entry.is_directory(error)) {
        continue;
      }
      CachedCopy copy{.folder = entry.path()};
      for (auto below = fs::recursive_directory_iterator(entry.path(), error);
           !error && below != fs::recursive_directory_iterator(); below.increment(error)) {
        const std::uintmax_t size = below->is_regular_file(error) ? below->file_size(error) : 0;
        copy.bytes += error ? 0 : size;
      }
      struct stat facts{};
      if (::stat((entry.path() / "used").c_str(), &facts) == 0) {
        copy.used = facts.st_mtim.tv_sec;
      }
      copies.push_back(std::move(copy));
    }
    std::ranges::sort(copies, {}, &CachedCopy::used);
    return copies;
  }
  /// False: somebody uses it.
  static bool remove(const fs::path& folder) {
    const int file = ::open((folder / "used").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 || ::flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (file >= 0) {
        ::close(file);
      }
      return false;
    }
    std::error_code error;
    const bool was_begun = folder.string().ends_with(removed_mark);
    const fs::path away =
        was_begun ? folder : fs::path(folder.string() + std::string(removed_mark));
    if (!was_begun) {
      fs::remove_all(away, error);
      fs::rename(folder, away, error);
    }
    if (!error) {
      fs::remove_all(away, error);
    }
    ::close(file);
    return !error;
  }

  fs::path folder_;
  fs::path used_;
};

std::uint64_t cache_limit(const CopyRules& rules) {
  const std::string text = environment_variable("TESSERA_STORE_CACHE_GIB").value_or("0");
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr std::uint64_t largest = 1 << 20;
  if (error != std::errc() || end != text.data() + text.size() || number > largest) {
    fail_input({.thing = "TESSERA_STORE_CACHE_GIB",
                .wrong = "it must be a whole number of GiB",
                .got = text});
  }
  return rules.most != 0 ? rules.most : number << 30U;
}

/// The objects that an address names, by their names below `base`.
struct NamedObjects {
  Address base;
  std::vector<ListedObject> objects = {};
  bool is_file = false;  // the one object is the address itself
};

/// Splits an address before the first part that has a '*' or '?'; nothing: none has.
std::optional<std::pair<Address, std::string>> pattern_of(const Address& address) {
  const std::string& text = address.text();
  const std::size_t star = text.find_first_of("*?");
  if (star == std::string::npos) {
    return std::nullopt;
  }
  const std::size_t slash = text.rfind('/', star);
  if (slash == std::string::npos || text.find(':') + 2 >= slash) {
    fail_input({.thing = text, .wrong = "a '*' may only be in the names of files and folders"});
  }
  return std::pair(Address(text.substr(0, slash)), text.substr(slash + 1));
}

NamedObjects objects_of(OpenStore& store, const std::string& pattern, const CopyRules& rules) {
  NamedObjects named{.base = store.address()};
  if (pattern.empty() && !store.is_whole()) {
    try {
      named.objects.push_back({.name = "", .facts = store.facts("")});
      named.is_file = true;
      return named;
    } catch (const StoreError& error) {
      if (error.failure() != StoreFailure::not_there || !store.has_lists()) {
        throw;
      }
    }
  }
  named.objects = store.list();
  if (!pattern.empty()) {
    std::erase_if(named.objects, [&](const ListedObject& object) {
      return ::fnmatch(pattern.c_str(), object.name.c_str(), FNM_PATHNAME | FNM_PERIOD) != 0;
    });
  } else if (rules.choose) {
    rules.choose(named.objects);
  }
  if (named.objects.empty()) {
    throw StoreError(StoreFailure::not_there,
                     {.thing = store.address().text() + (pattern.empty() ? "" : "/" + pattern),
                      .wrong = "there is nothing of this name",
                      .advice = "check the address"});
  }
  return named;
}

std::string content_of(const Address& address, const NamedObjects& named) {
  ContentHash hash;
  const auto add = [&](const std::string& text) {
    const std::string framed = fmt::format("{}:{}", text.size(), text);
    hash.add(std::as_bytes(std::span(framed)));
  };
  add(fmt::format("{}:{}", address.scheme(), address.rest()));  // hf://x is hf:x
  for (const auto& [name, facts] : named.objects) {
    add(name);
    add(fmt::format("{}", facts.size));
    add(facts.version);
    add(facts.sha256);
    add(facts.git_blob);
  }
  return hash.hex();
}

/// Fetches objects with a few threads; the first error ends all.
void copy_all(OpenStore& store, const std::vector<ListedObject>& objects, const CopyFolder& folder,
              const std::string& leaf, std::size_t at_once) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::exception_ptr first;
  const auto copy_some = [&] {
    for (std::size_t i = next++; i < objects.size() && !failed; i = next++) {
      try {
        const std::string& name = leaf.empty() ? objects[i].name : leaf;
        copy_object(store, objects[i], folder.file(name).string(), folder.partial(name).string());
        folder.keep_record(name);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = true;
        first = first ? first : std::current_exception();
      }
    }
  };
  if (objects.size() == 1) {
    copy_some();
  } else {
    Threads threads;
    for (std::size_t i = 0; i < std::min(at_once, objects.size()); ++i) {
      threads.start("stores", copy_some);
    }
    threads.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

std::string leaf_of(const Address& address) {
  return address.rest().substr(address.rest().rfind('/') + 1);
}

}  // namespace

LocalCopy fetch(const Address& address, const CopyRules& rules) {
  const auto pattern = pattern_of(address);
  OpenStore store(pattern ? pattern->first : address, rules.store);
  const NamedObjects named = objects_of(store, pattern ? pattern->second : "", rules);
  LocalCopy copy(address);
  copy.content_ = content_of(address, named);
  const fs::path root = rules.folder.empty() ? cache_folder({.what = "copies of what is in stores",
                                                             .variable = "TESSERA_STORE_CACHE",
                                                             .folder = "stores"})
                                             : fs::path(rules.folder);
  const CopyFolder folder(root / copy.content_);
  copy.use_ = std::make_shared<LocalCopy::Use>(root / copy.content_);
  const std::string leaf = named.is_file ? leaf_of(address) : "";
  copy.path_ = (named.is_file ? folder.file(leaf) : folder.files()).string();

  fs::create_directories(root / copy.content_ / "partial");
  FileLock lock = folder.lock();
  constexpr double longest_wait = 86400;
  Patience patience(longest_wait);
  if (lock.take(patience, fmt::format("the copy of {}", address.text()), "fails") ==
      FileLock::State::busy) {
    fail({.thing = address.text(),
          .wrong = fmt::format("{} has fetched it for a day", lock.holder())});
  }
  std::vector<ListedObject> missing;
  std::uint64_t bytes = 0;
  for (const ListedObject& object : named.objects) {
    const ListedObject local{.name = leaf.empty() ? object.name : leaf, .facts = object.facts};
    if (!folder.has(local)) {
      missing.push_back(object);
      bytes += object.facts.size;
    }
  }
  if (!missing.empty()) {
    CopyCache(root, root / copy.content_).make_room(bytes, cache_limit(rules), address);
    log(LogLevel::info, fmt::format("stores: fetching {}: {}, {}", address.text(),
                                    count_text(static_cast<std::int64_t>(missing.size()), "file"),
                                    format_bytes(bytes)));
    copy_all(store, missing, folder, leaf, rules.at_once);
    copy.fetched_ = store.counts().bytes_read;
  }
  return copy;
}

LocalInput::LocalInput(std::string_view text, const CopyRules& rules) {
  const Location location = parse_location(text);
  if (const auto* const address = std::get_if<Address>(&location)) {
    copy_.emplace(fetch(*address, rules));
  }
  path_ = copy_ ? copy_->path() : std::string(text);
}

}  // namespace tessera::stores
