#include "nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "find_function.hpp"
#include "nvrtc_api.hpp"

import tessera.base;

namespace tessera::cuda {
namespace {

struct Header {
  const char* name;
  const char* text;
};
constexpr Header headers[] = {
#include TESSERA_LOOP_HEADERS
};

/// The library's functions; none: it cannot be opened, or is not what it should be.
const std::optional<NvrtcApi>& opened() {
  static const std::optional<NvrtcApi> api =
      open_functions<NvrtcApi>({"libnvrtc.so.13", "libnvrtc.so.12"}).api;
  return api;
}

void check(const NvrtcApi& api, NvrtcResult result, const char* call) {
  if (result != NvrtcResult::success) {
    fail({.thing = "cuda",
          .wrong = fmt::format("{} fails: {}", call, api.get_error_string(result))});
  }
}

std::string text_of(const NvrtcApi& api, NvrtcProgram program,
                    NvrtcResult (*size)(NvrtcProgram, std::size_t*),
                    NvrtcResult (*get)(NvrtcProgram, char*), const char* call) {
  std::size_t bytes = 0;
  check(api, size(program, &bytes), call);
  std::string text(bytes, '\0');
  check(api, get(program, text.data()), call);
  return text;
}

/// The first error of a log, without its place.
std::string first_error(const std::string& log) {
  constexpr std::string_view mark = "error:";
  const std::size_t at = log.find(mark);
  const std::size_t begin = at == std::string::npos ? 0 : at + mark.size() + 1;
  return log.substr(begin, log.find('\n', begin) - begin);
}

}  // namespace

std::string compiler_version() {
  if (!opened()) {
    return "";
  }
  int major = 0;
  int minor = 0;
  check(*opened(), opened()->version(&major, &minor), "nvrtcVersion");
  return fmt::format("{}.{}", major, minor);
}

CompiledSource compile_source(const std::string& source, const std::string& capability) {
  const std::optional<NvrtcApi>& found = opened();
  if (!found) {
    return {.missing =
                "NVRTC's library cannot be opened; install it (libnvrtc.so.13: pip install "
                "nvidia-cuda-nvrtc), in a folder of LD_LIBRARY_PATH"};
  }
  const NvrtcApi& api = *found;
  std::vector<const char*> names;
  std::vector<const char*> texts;
  for (const Header& header : headers) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  NvrtcProgram program = nullptr;
  check(api,
        api.create_program(&program, source.c_str(), "loops.cu", static_cast<int>(names.size()),
                           texts.data(), names.data()),
        "nvrtcCreateProgram");
  const std::string architecture = "--gpu-architecture=sm_" + capability;
  const std::array options = {architecture.c_str(), "-std=c++20", "-default-device",
                              "-diag-suppress=161,186,1097"};
  const NvrtcResult compiled =
      api.compile_program(program, static_cast<int>(options.size()), options.data());
  if (compiled == NvrtcResult::compilation) {
    const std::string log =
        text_of(api, program, api.get_log_size, api.get_log, "nvrtcGetProgramLog");
    api.destroy_program(&program);
    fail({.thing = "compiled kernels",
          .wrong = "NVRTC refuses the generated code: " + first_error(log),
          .advice = "correct Op::element of the operator, or set graph.executor to planned"});
  }
  check(api, compiled, "nvrtcCompileProgram");
  CompiledSource made = {
      .code = text_of(api, program, api.get_cubin_size, api.get_cubin, "nvrtcGetCUBIN")};
  api.destroy_program(&program);
  return made;
}

}  // namespace tessera::cuda
