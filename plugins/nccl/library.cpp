#include "library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "find_function.hpp"

import tessera.base;

namespace tessera::nccl {
namespace {

constexpr int oldest = 21800;  // 2.18: ncclCommSplit
constexpr const char* how_to_install =
    "install NCCL 2.18 or later (pip install nvidia-nccl-cu13, or NVIDIA's libnccl2) and add its "
    "folder to LD_LIBRARY_PATH, or set mesh.device_collectives = \"host\"";

[[noreturn]] void refuse(std::string wrong) {
  fail_input({.thing = "collectives 'cuda'", .wrong = std::move(wrong), .advice = how_to_install});
}

int version_of(const Api& all) {
  int version = 0;
  all.get_version(&version);
  return version;
}

std::string in_words(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

Api open_library() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    refuse(fmt::format("NCCL's library cannot be opened: {}", dlerror()));
  }
  Api all = {};
  each_function(all, [&](auto& function, const char* name, bool needed) {
    if (!cuda::find_function(library, name, function) && needed) {
      refuse(fmt::format("libnccl.so.2 has no function {}", name));
    }
  });
  if (version_of(all) < oldest) {
    refuse(fmt::format("NCCL is too old (expected {} or later, got {})", in_words(oldest),
                       in_words(version_of(all))));
  }
  return all;
}

}  // namespace

const Api& api() {
  static const Api all = open_library();
  return all;
}

std::string version_text() { return "NCCL " + in_words(version_of(api())); }

}  // namespace tessera::nccl
