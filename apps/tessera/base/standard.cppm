module;
#include <cstdio>
#include <filesystem>
#include <limits>
export module tessera.app.base:standard;

export import tessera.base;

// What interfaces of the program name of the standard library, besides what those of the library
// do: see modules/base/standard.cppm.
export namespace std {

using std::FILE;
using std::numeric_limits;

namespace filesystem {
using std::filesystem::path;
}  // namespace filesystem

}  // namespace std
