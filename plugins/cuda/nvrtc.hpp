// CUDA's compiler at run time.
#pragma once
#include <string>

namespace tessera::cuda {

/// Code for a GPU, or why there is none.
struct CompiledSource {
  std::string code = {};
  std::string missing = {};  // "": there is code
};
/// The compiler's version, such as "13.0"; "": its library cannot be opened.
std::string compiler_version();
/// Compiles a source, which may include what generated loops need, for GPUs of a compute capability
/// such as "90"; or finds the code in the cache (use_cached_code). Missing: NVRTC's library.
/// Errors: it refuses the source; others could change the cache.
CompiledSource compile_source(const std::string& source, const std::string& capability);

}  // namespace tessera::cuda
