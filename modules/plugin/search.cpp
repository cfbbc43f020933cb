module;
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>
module tessera.plugin;

import tessera.base;

namespace fs = std::filesystem;

namespace tessera::plugin {
namespace {

void add_folder(const fs::path& folder, std::vector<Candidate>& found) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_plugin_name(it->path().native())) {
      names.push_back(it->path().string());
    }
  }
  if (error) {
    found.push_back(
        {folder.string(), fmt::format("the folder cannot be read: {}", error.message())});
  }
  std::sort(names.begin(), names.end());
  for (std::string& name : names) {
    found.push_back({std::move(name), ""});
  }
}

/// A path that the user named: a folder or a file; it must exist.
void add_named(const fs::path& path, std::vector<Candidate>& found) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    add_folder(path, found);
  } else if (fs::exists(path, error)) {
    found.push_back({path.string(), ""});
  } else {
    found.push_back({path.string(), "does not exist"});
  }
}

void add_standard(const std::string& folder, std::vector<Candidate>& found) {
  std::error_code error;
  if (!folder.empty() && fs::is_directory(folder, error)) {
    add_folder(folder, found);
  }
}

void add_environment(std::vector<Candidate>& found) {
  const std::string all = environment_variable("TESSERA_PLUGIN_PATH").value_or("");
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t colon = std::min(all.find(':', at), all.size());
    const std::string entry = all.substr(at, colon - at);
    at = colon + 1;
    if (entry.empty()) {
      continue;
    }
    if (entry.front() == '/') {
      add_named(entry, found);
    } else {
      found.push_back({entry, "relative path in TESSERA_PLUGIN_PATH; write the full path"});
    }
  }
}

}  // namespace

std::string installed_plugin_folder() {
  Dl_info info{};
  const auto* here = reinterpret_cast<const void*>(&installed_plugin_folder);
  if (dladdr(here, &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  std::error_code error;
  const fs::path library = fs::canonical(info.dli_fname, error);
  return error ? "" : (library.parent_path() / "tessera" / "plugins").string();
}

std::string user_plugin_folder() {
  const std::string data = environment_variable("XDG_DATA_HOME").value_or("");
  if (data.starts_with('/')) {
    return data + "/tessera/plugins";
  }
  const std::string home = environment_variable("HOME").value_or("");
  return home.starts_with('/') ? home + "/.local/share/tessera/plugins" : "";
}

std::vector<Candidate> search_libraries(const SearchOptions& options) {
  std::vector<Candidate> found;
  for (const std::string& path : options.paths) {
    std::error_code error;
    add_named(fs::absolute(path, error), found);
  }
  if (options.environment) {
    add_environment(found);
  }
  if (options.standard_places) {
    add_standard(user_plugin_folder(), found);
    add_standard(installed_plugin_folder(), found);
  }
  return found;
}

}  // namespace tessera::plugin
