module;
#include <cstdio>
#include <limits>
export module tessera.run:standard;

import tessera.base;

// Names of the standard library that interfaces of this module use, besides those of the library:
// see modules/base/standard.cppm.
export namespace std {

using std::FILE;
using std::numeric_limits;

}  // namespace std
