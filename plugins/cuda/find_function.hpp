// Functions of libraries that are opened at run time.
#pragma once
#include <dlfcn.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "library_function.hpp"

namespace tessera::cuda {

/// Sets a function to the library's one of this name; false: it has none.
template <Waits waits, class Signature>
bool find_function(void* library, const char* name, LibraryFunction<waits, Signature>& function) {
  function.set(dlsym(library, name));
  return static_cast<bool>(function);
}

/// What open_functions() has found.
template <class Api>
struct OpenedFunctions {
  std::optional<Api> api = {};  // none: no library can be opened, or it lacks a function
  std::string lacks = {};       // "libcudnn.so.9 has no function NAME"; "": it lacks none
};

/// Opens the first of the libraries that is found, and all functions that each_function(Api) names.
/// The library stays open.
template <class Api>
OpenedFunctions<Api> open_functions(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      continue;
    }
    OpenedFunctions<Api> opened = {.api = Api()};
    each_function(*opened.api, [&](auto& function, const char* one) {
      if (!find_function(library, one, function) && opened.lacks.empty()) {
        opened.lacks = std::string(name) + " has no function " + one;
      }
    });
    if (!opened.lacks.empty()) {
      opened.api.reset();
    }
    return opened;
  }
  return {};
}

}  // namespace tessera::cuda
