module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.stores;

namespace tessera::runs {

void use_plugins(std::vector<std::string> paths) {
  for (std::string& path : paths) {
    if (stores::is_address(path)) {
      fail_input({.thing = fmt::format("plugin {}", stores::Address(path).text()),
                  .wrong = "this is no place of a store for this key (expected a path: code is run "
                           "from files of this machine only)",
                  .advice = "copy the file to this machine"});
    }
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      fail_input(
          {.thing = fmt::format("plugin {}", path), .wrong = "there is no such file or folder"});
    }
    path = std::filesystem::absolute(path).string();
  }
  plugin::configure_host({.paths = paths});
  // A file that was named is wanted, whether or not a style of the run comes from it.
  for (const plugin::PluginFile& found :
       paths.empty() ? std::vector<plugin::PluginFile>{} : plugin::host().list()) {
    const bool named = std::ranges::any_of(paths, [&](const std::string& path) {
      std::error_code ignored;
      return std::filesystem::equivalent(path, found.file, ignored);
    });
    if (named && !found.refusals.empty()) {
      fail_input({.thing = fmt::format("plugin {}", found.file),
                  .wrong = fmt::format("is refused: {}", fmt::join(found.refusals, "; "))});
    }
  }
}

void use_plugins(const RunSpec& spec, std::vector<std::string> paths) {
  const std::vector<std::string>& own = spec.plugins.paths;
  paths.insert(paths.end(), own.begin(), own.end());
  try {
    use_plugins(std::move(paths));
  } catch (const Error& error) {
    if (std::ranges::none_of(own, [&](const std::string& path) {
          return error.fields().thing.find(path) != std::string::npos;
        })) {
      throw;
    }
    fail_at_key(spec, "plugins.paths", error);
  }
}

}  // namespace tessera::runs
