module;
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>
module tessera.app.base;

import tessera.base;

namespace tessera::app {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder(const std::string& name)
    : path_((fs::temp_directory_path() / ("tessera-" + name + "-XXXXXX")).string()) {
  if (::mkdtemp(path_.data()) == nullptr) {
    fail({.thing = path_, .wrong = "the folder cannot be made"});
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace tessera::app
