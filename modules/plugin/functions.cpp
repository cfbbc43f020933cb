module;
#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "trust.hpp"
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {

std::string refusal_of_folder(const std::string& folder) {
  Trust trust;
  trust.check_own_folder(folder);
  return trust.refusals().empty() ? std::string() : trust.refusals().front();
}

FunctionLibrary::FunctionLibrary(const std::string& file) : file_(file) {
  Trust trust;
  const bool is_there = trust.check_file(file);
  if (!is_there || !trust.refusals().empty()) {
    fail_input({.thing = file,
                .wrong = is_there ? trust.refusals().front() : std::string("there is no such file"),
                .expected = "a file that only you and root can change"});
  }
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* const why = dlerror();
    fail_input({.thing = file,
                .wrong = fmt::format("cannot be loaded: {}", why != nullptr ? why : "no reason")});
  }
}

void* FunctionLibrary::find(const std::string& name) const {
  void* const found = dlsym(handle_, name.c_str());
  if (found == nullptr) {
    fail({.thing = file_, .wrong = fmt::format("it has no function '{}'", name)});
  }
  return found;
}

}  // namespace tessera::plugin
