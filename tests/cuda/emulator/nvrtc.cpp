// libnvrtc.so.13: a source becomes a library of kernels as the emulator has them, by the compiler
// that has built the emulator. That library is the "code", which cuModuleLoadData loads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control.hpp"
#include "module_image.hpp"
#include "nvrtc_api.hpp"

namespace tessera::cuda {

struct NvrtcProgramData {
  std::string source;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
  std::string log;
  std::string code;
};

}  // namespace tessera::cuda

namespace {

using namespace tessera::cuda;
namespace fs = std::filesystem;

constexpr NvrtcResult invalid_input = static_cast<NvrtcResult>(3);
constexpr NvrtcResult invalid_option = static_cast<NvrtcResult>(5);

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

std::string read(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return std::move(text).str();
}

/// Runs a command with its output in a file; its status.
int run(const std::vector<std::string>& words, const fs::path& output) {
  const pid_t child = fork();
  if (child == 0) {
    const bool opened = std::freopen(output.c_str(), "w", stderr) != nullptr;
    std::vector<char*> arguments;
    for (const std::string& word : words) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    if (opened) {
      execv(arguments[0], arguments.data());
    }
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

/// What the compiler is told besides; a GPU's own options are only looked at.
bool right(std::string_view option, bool& has_architecture) {
  has_architecture = has_architecture || option.starts_with("--gpu-architecture=sm_");
  return option.starts_with("--gpu-architecture=sm_") || option == "-std=c++20" ||
         option == "-default-device" || option.starts_with("-diag-suppress=");
}

std::atomic<std::uint64_t> compilations = 0;

NvrtcResult size_of_text(const std::string& text, std::size_t* bytes) {
  *bytes = text.size() + 1;
  return NvrtcResult::success;
}
NvrtcResult copy_text(const std::string& text, char* to) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  return NvrtcResult::success;
}

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(NvrtcResult result) {
  switch (result) {
    case NvrtcResult::success:
      return "NVRTC_SUCCESS";
    case NvrtcResult::compilation:
      return "NVRTC_ERROR_COMPILATION";
    case invalid_option:
      return "NVRTC_ERROR_INVALID_OPTION";
    default:
      return "NVRTC_ERROR_INVALID_INPUT";
  }
}

NvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NvrtcResult::success;
}

NvrtcResult nvrtcCreateProgram(NvrtcProgram* program, const char* source, const char*, int count,
                               const char* const* texts, const char* const* names) {
  if (program == nullptr || source == nullptr || count < 0) {
    return invalid_input;
  }
  *program = new NvrtcProgramData{.source = source, .headers = {}, .log = {}, .code = {}};
  for (int i = 0; i < count; ++i) {
    (*program)->headers.emplace_back(names[i], texts[i]);
  }
  return NvrtcResult::success;
}

NvrtcResult nvrtcDestroyProgram(NvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NvrtcResult::success;
}

NvrtcResult nvrtcCompileProgram(NvrtcProgram program, int count, const char* const* options) {
  bool has_architecture = false;
  for (int i = 0; i < count; ++i) {
    if (!right(options[i], has_architecture)) {
      return invalid_option;
    }
  }
  if (!has_architecture) {
    return invalid_option;
  }
  std::string folder_name = (fs::temp_directory_path() / "emulated-nvrtc-XXXXXX").string();
  if (mkdtemp(folder_name.data()) == nullptr) {
    return invalid_input;
  }
  const fs::path folder = folder_name;
  const fs::path include = folder / "include";
  for (const auto& [name, text] : program->headers) {
    if (name.find('/') != std::string::npos) {  // the host has a standard library of its own
      write(include / name, text);
    }
  }
  if (const char* const kept = std::getenv("TESSERA_EMULATOR_SOURCES")) {
    const std::size_t hash = std::hash<std::string>()(program->source);
    write(fs::path(kept) / (std::to_string(hash) + ".cu"), program->source);
  }
  const fs::path source = folder / "source.cpp";
  const fs::path library = folder / "kernels.so";
  write(source, program->source);
  const int status =
      run({EMULATED_COMPILER, "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-vectorize",
           "-fno-slp-vectorize", "-fsanitize-coverage=func,trace-loads,trace-stores", "-include",
           EMULATOR_FOLDER "/kernel.hpp", "-I", include.string(), source.string(), "-o",
           library.string()},
          folder / "log");
  program->log = read(folder / "log");
  if (status != 0) {
    fs::remove_all(folder);
    return NvrtcResult::compilation;
  }
  const std::string bytes = read(library);
  const std::uint64_t length = bytes.size();
  program->code = std::string(emulator::module_image_mark) +
                  std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + bytes;
  fs::remove_all(folder);
  ++compilations;
  return NvrtcResult::success;
}

NvrtcResult nvrtcGetCUBINSize(NvrtcProgram program, std::size_t* bytes) {
  *bytes = program->code.size();
  return NvrtcResult::success;
}
NvrtcResult nvrtcGetCUBIN(NvrtcProgram program, char* code) {
  std::memcpy(code, program->code.data(), program->code.size());
  return NvrtcResult::success;
}
NvrtcResult nvrtcGetProgramLogSize(NvrtcProgram program, std::size_t* bytes) {
  return size_of_text(program->log, bytes);
}
NvrtcResult nvrtcGetProgramLog(NvrtcProgram program, char* log) {
  return copy_text(program->log, log);
}

std::uint64_t emulator_compilations() { return compilations; }

}  // extern "C"
