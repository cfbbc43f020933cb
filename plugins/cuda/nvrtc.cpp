#include "nvrtc.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "find_function.hpp"
#include "nvrtc_api.hpp"

import tessera.base;
import tessera.cache;

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
                    Immediate<NvrtcResult(NvrtcProgram, std::size_t*)> size,
                    Immediate<NvrtcResult(NvrtcProgram, char*)> get, const char* call) {
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

std::vector<std::string> options_for(const std::string& capability) {
  return {"--gpu-architecture=sm_" + capability, "-std=c++20", "-default-device",
          "-diag-suppress=161,186,1097"};
}

/// The library's file with its size and time, as its version does not tell two builds apart.
std::string identity(const NvrtcApi& api) {
  Dl_info info = {};
  if (dladdr(api.version.address(), &info) == 0) {
    return "";
  }
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, ignored);
  return fmt::format("{} {} {}", file.string(), std::filesystem::file_size(file, ignored),
                     std::filesystem::last_write_time(file, ignored).time_since_epoch().count());
}

/// All that the code of a source depends on.
std::string key_of(const NvrtcApi& api, const std::string& source, const std::string& capability) {
  std::string key = fmt::format("NVRTC {} {} {}\n", compiler_version(), identity(api),
                                fmt::join(options_for(capability), " "));
  for (const Header& header : headers) {
    key += fmt::format("{}\n{}", header.name, header.text);
  }
  return key + source;
}

std::string compiled(const NvrtcApi& api, const std::string& source,
                     const std::string& capability) {
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
  const std::vector<std::string> options = options_for(capability);
  std::vector<const char*> words;
  for (const std::string& option : options) {
    words.push_back(option.c_str());
  }
  const NvrtcResult result =
      api.compile_program(program, static_cast<int>(words.size()), words.data());
  if (result == NvrtcResult::compilation) {
    const std::string log =
        text_of(api, program, api.get_log_size, api.get_log, "nvrtcGetProgramLog");
    api.destroy_program(&program);
    fail({.thing = "compiled kernels",
          .wrong = "NVRTC refuses the generated code: " + first_error(log),
          .advice = "correct Op::element of the operator, or set graph.executor to planned"});
  }
  check(api, result, "nvrtcCompileProgram");
  std::string code = text_of(api, program, api.get_cubin_size, api.get_cubin, "nvrtcGetCUBIN");
  api.destroy_program(&program);
  return code;
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
  const std::optional<NvrtcApi>& api = opened();
  if (!api) {
    return {.missing =
                "NVRTC's library cannot be opened; install it (libnvrtc.so.13: pip install "
                "nvidia-cuda-nvrtc), in a folder of LD_LIBRARY_PATH"};
  }
  CompiledSource made;
  const std::string not_kept =
      use_cached_code({.key = key_of(*api, source, capability),
                       .extension = "cubin",
                       .otherwise = "this process compiles them itself",
                       .make = [&](const std::string& file) -> CompileOutcome {
                         made.code = compiled(*api, source, capability);
                         return {.missing = write_file(file, made.code)};
                       },
                       .use = [&](const std::string& file) -> std::string {
                         std::ostringstream bytes;
                         bytes << std::ifstream(file, std::ios::binary).rdbuf();
                         made.code = std::move(bytes).str();
                         return "";
                       }});
  if (!not_kept.empty() && made.code.empty()) {
    made.code = compiled(*api, source, capability);
  }
  return made;
}

}  // namespace tessera::cuda
