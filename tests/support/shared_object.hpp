// An object that a test's process and those that it forks have in common.
#pragma once

#include <sys/mman.h>

#include <new>

#include "catch.hpp"

namespace tessera::testing {

/// It stays until the process ends.
template <class T>
T* shared_object() {
  void* const memory =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return new (memory) T{};
}

}  // namespace tessera::testing
