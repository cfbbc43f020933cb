module;
#include <limits>
export module tessera.app.base:standard;

export import tessera.base;

// Names of the standard library that interfaces of the program use, besides those of the library:
// do: see modules/base/standard.cppm.
export namespace std {

using std::numeric_limits;

}  // namespace std
