module;
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
module tessera.cache;

import tessera.base;
import tessera.plugin;

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Where the cache is. CacheError: nothing says where.
fs::path absolute_place(const CachePlace& place) {
  fs::path folder = environment_variable(place.variable.c_str()).value_or("");
  if (folder.empty()) {
    // The XDG specification: a relative path is invalid and ignored.
    const std::string cache = environment_variable("XDG_CACHE_HOME").value_or("");
    const std::string home = environment_variable("HOME").value_or("");
    if (!cache.starts_with('/') && !home.starts_with('/')) {
      throw CacheError(
          fmt::format("there is no folder for {}; set {}", place.what, place.variable));
    }
    folder = (cache.starts_with('/') ? fs::path(cache) : fs::path(home) / ".cache") / "tessera" /
             place.folder;
  }
  return fs::absolute(folder);
}

/// Error (input): others could change what is in the folder.
void check_trusted(const fs::path& folder, const CachePlace& place) {
  if (const std::string why = plugin::refusal_of_folder(folder.string()); !why.empty()) {
    fail_input({.thing = fmt::format("the cache of {}", place.what),
                .wrong = why,
                .expected = "a folder that only you and root can change",
                .advice = fmt::format("or name another one in {}", place.variable)});
  }
}

}  // namespace

fs::path cache_folder(const CachePlace& place) {
  fs::path folder = absolute_place(place);
  check_trusted(folder, place);  // before anything is made in it
  std::error_code error;
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
    check_trusted(folder, place);
  }
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) {
    throw CacheError(fmt::format("{} cannot be written; set {}", folder.string(), place.variable));
  }
  return folder;
}

}  // namespace tessera
