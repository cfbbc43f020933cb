#include "library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "find_function.hpp"

import tessera.base;

namespace tessera::nccl {
namespace {

constexpr int oldest = 21800;               // 2.18: ncclCommSplit
constexpr int oldest_with_windows = 22700;  // 2.27: ncclCommWindowRegister
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

std::string version_text() {
  std::string text = "NCCL " + in_words(version_of(api()));
  if (const std::size_t window = windows_asked_for(); window > 0) {
    refuse_windows_where_none();
    text += fmt::format(", windows of {} MiB", window >> 20);
  }
  return text;
}

std::size_t windows_asked_for() {
  const char* const variable = std::getenv("TESSERA_NCCL_WINDOW");
  const std::string_view text = variable == nullptr || *variable == '\0' ? "0" : variable;
  constexpr std::size_t most = 4096;
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > most) {
    fail_input({.thing = "TESSERA_NCCL_WINDOW",
                .wrong = "is not the size of a window in MiB",
                .expected = fmt::format("0 (no windows) to {}", most),
                .got = std::string(text)});
  }
  return number << 20;
}

void refuse_windows_where_none() {
  const Api& all = api();
  if (version_of(all) < oldest_with_windows || !all.comm_window_register ||
      !all.comm_window_deregister || !all.mem_alloc || !all.mem_free) {
    fail_input({.thing = "TESSERA_NCCL_WINDOW",
                .wrong = "NCCL has no symmetric windows",
                .expected = fmt::format("version {} or later", in_words(oldest_with_windows)),
                .got = in_words(version_of(all)),
                .advice = "install a newer NCCL (pip install nvidia-nccl-cu13), or unset the "
                          "variable on rank 0"});
  }
}

}  // namespace tessera::nccl
