// The part of NVRTC that the plugin uses, declared here as driver_api.hpp does: names, values and
// types are those of nvrtc.h. The library is opened when loops are first compiled.
#pragma once
#include <cstddef>

#include "library_function.hpp"

namespace tessera::cuda {

enum class NvrtcResult : int { success = 0, compilation = 6 };
struct NvrtcProgramData;
using NvrtcProgram = NvrtcProgramData*;

/// The library's functions, without "nvrtc". They use no GPU.
struct NvrtcApi {
  Immediate<const char*(NvrtcResult result)> get_error_string;
  Immediate<NvrtcResult(int* major, int* minor)> version;
  Immediate<NvrtcResult(NvrtcProgram* program, const char* source, const char* name, int headers,
                        const char* const* texts, const char* const* names)>
      create_program;
  Immediate<NvrtcResult(NvrtcProgram* program)> destroy_program;
  Immediate<NvrtcResult(NvrtcProgram program, int count, const char* const* options)>
      compile_program;
  Immediate<NvrtcResult(NvrtcProgram program, std::size_t* bytes)> get_cubin_size;
  Immediate<NvrtcResult(NvrtcProgram program, char* code)> get_cubin;
  Immediate<NvrtcResult(NvrtcProgram program, std::size_t* bytes)> get_log_size;
  Immediate<NvrtcResult(NvrtcProgram program, char* log)> get_log;
};

/// Calls use(the place of a function's pointer, its name in the library) for each function.
template <class Use>
void each_function(NvrtcApi& api, Use use) {
  use(api.get_error_string, "nvrtcGetErrorString");
  use(api.version, "nvrtcVersion");
  use(api.create_program, "nvrtcCreateProgram");
  use(api.destroy_program, "nvrtcDestroyProgram");
  use(api.compile_program, "nvrtcCompileProgram");
  use(api.get_cubin_size, "nvrtcGetCUBINSize");
  use(api.get_cubin, "nvrtcGetCUBIN");
  use(api.get_log_size, "nvrtcGetProgramLogSize");
  use(api.get_log, "nvrtcGetProgramLog");
}

}  // namespace tessera::cuda
