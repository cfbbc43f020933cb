// The libraries that the dynamic loader would load with a library. Plain C++.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "trust.hpp"

namespace tessera::plugin {

/// Follows what a library needs (NEEDED, RPATH, RUNPATH) as the loader of glibc would, and checks
/// each library that it would load, and each folder where it would look for one first. Not checked:
/// what this process has loaded already, and what only the system's own configuration finds
/// (ld.so.conf). `path` is absolute, `bytes` its content.
void check_dependencies(const std::string& path, std::span<const std::byte> bytes, Trust& trust);

}  // namespace tessera::plugin
