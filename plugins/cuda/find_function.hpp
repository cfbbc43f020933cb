// Functions of libraries that are opened at run time.
#pragma once
#include <dlfcn.h>

namespace tessera::cuda {

/// Sets a pointer to the library's function of this name, whose type must be the pointer's; null
/// and false: it has none.
template <class Function>
bool find_function(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace tessera::cuda
