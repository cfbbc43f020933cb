module tessera.execute:compiler;

import tessera.base;
import tessera.plugin;

namespace tessera::graph {

/// A compiler for generated code.
struct Compiler {
  std::string command = {};
  std::string version = {};  // its first line
  std::string missing = {};  // why there is none; "": there is one
};
/// TESSERA_CXX, or the compiler that has built the library, or clang++-19 or clang++ in the PATH:
/// the first one that is there. It must be a clang of at least version 19, because generated code
/// has the bits of the library's kernels only if both are compiled alike.
const Compiler& find_compiler();

/// A library of generated code.
struct GeneratedLibrary {
  std::shared_ptr<const plugin::FunctionLibrary> library = {};
  std::string missing = {};  // why there is none; "": there is one
};
/// The source, compiled; or found in the cache, by its content and that of everything it includes,
/// the options and the compiler. Of several processes that need it at once, one compiles. The cache
/// is TESSERA_KERNEL_CACHE or ~/.cache/tessera/kernels, is this user's alone, and keeps the 200
/// libraries that were used last. Missing: a compiler, or a cache that can be written. Errors: the
/// compiler refuses the source; others could have changed the library (see
/// plugin::FunctionLibrary).
GeneratedLibrary generated_library(const std::string& source);

}  // namespace tessera::graph
