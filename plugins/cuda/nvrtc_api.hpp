// The part of NVRTC that the plugin uses, declared here as driver_api.hpp does: names, values and
// types are those of nvrtc.h. The library is opened when loops are first compiled.
#pragma once
#include <cstddef>

namespace tessera::cuda {

enum class NvrtcResult : int { success = 0, compilation = 6 };
struct NvrtcProgramData;
using NvrtcProgram = NvrtcProgramData*;

/// The library's functions, without "nvrtc".
struct NvrtcApi {
  const char* (*get_error_string)(NvrtcResult result);
  NvrtcResult (*version)(int* major, int* minor);
  NvrtcResult (*create_program)(NvrtcProgram* program, const char* source, const char* name,
                                int headers, const char* const* texts, const char* const* names);
  NvrtcResult (*destroy_program)(NvrtcProgram* program);
  NvrtcResult (*compile_program)(NvrtcProgram program, int count, const char* const* options);
  NvrtcResult (*get_cubin_size)(NvrtcProgram program, std::size_t* bytes);
  NvrtcResult (*get_cubin)(NvrtcProgram program, char* code);
  NvrtcResult (*get_log_size)(NvrtcProgram program, std::size_t* bytes);
  NvrtcResult (*get_log)(NvrtcProgram program, char* log);
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
