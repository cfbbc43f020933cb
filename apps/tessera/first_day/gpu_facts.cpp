module;
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.app.base;
import :gpu_facts;

namespace tessera::app::first_day {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* newer_driver =
    "install NVIDIA's driver 570 or later (nvidia-smi shows which one is there)";

template <class F>
F* function_in(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

/// {"driver", "gpus"}, or {"wrong", "expected", "got", "advice"}.
Json ask_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    return {{"wrong", "NVIDIA's driver (libcuda.so.1) is not found"},
            {"got", dlerror()},
            {"advice", newer_driver}};
  }
  const auto init = function_in<int(unsigned)>(library, "cuInit");
  const auto version_of = function_in<int(int*)>(library, "cuDriverGetVersion");
  const auto count_of = function_in<int(int*)>(library, "cuDeviceGetCount");
  const auto device_of = function_in<int(int*, int)>(library, "cuDeviceGet");
  const auto name_of_device = function_in<int(char*, int, int)>(library, "cuDeviceGetName");
  const auto attribute_of = function_in<int(int*, int, int)>(library, "cuDeviceGetAttribute");
  const auto memory_of = function_in<int(std::size_t*, int)>(library, "cuDeviceTotalMem_v2");
  if (init == nullptr || version_of == nullptr || count_of == nullptr || device_of == nullptr ||
      name_of_device == nullptr || attribute_of == nullptr || memory_of == nullptr) {
    return {{"wrong", "libcuda.so.1 is not NVIDIA's driver, or is too old"},
            {"advice", newer_driver}};
  }
  int version = 0;
  version_of(&version);
  const int started = init(0);
  constexpr int oldest = 12080;
  if (version < oldest) {
    return {{"wrong", "NVIDIA's driver is too old"},
            {"expected", "CUDA 12.8 or later"},
            {"got", cuda_version(version)},
            {"advice", newer_driver}};
  }
  int count = 0;
  if (started != 0 || count_of(&count) != 0 || count == 0) {
    return {{"wrong", "there is no GPU that can be used"},
            {"got", fmt::format("cuInit returns {}, {} devices", started, count)},
            {"advice", "look at nvidia-smi and CUDA_VISIBLE_DEVICES"}};
  }
  Json gpus = Json::array();
  for (int i = 0; i < count; ++i) {
    constexpr int major_attribute = 75;
    constexpr int minor_attribute = 76;
    int device = 0;
    int major = 0;
    int minor = 0;
    std::size_t memory = 0;
    std::array<char, 256> name{};
    device_of(&device, i);
    name_of_device(name.data(), static_cast<int>(name.size()) - 1, device);
    attribute_of(&major, major_attribute, device);
    attribute_of(&minor, minor_attribute, device);
    memory_of(&memory, device);
    gpus.push_back({{"name", name.data()},
                    {"capability", fmt::format("{}{}", major, minor)},
                    {"memory", memory}});
  }
  return {{"driver", version}, {"gpus", gpus}};
}

/// A library that the plugins open, and the versions that they take, the best one first.
struct LibraryChoice {
  const char* name;
  std::vector<int> versions;
  const char* use;
  const char* package;
};

const std::vector<LibraryChoice>& wanted_libraries() {
  static const std::vector<LibraryChoice> all = {
      {"libcublasLt.so", {13, 12}, "products", "nvidia-cublas"},
      {"libcudnn.so", {9}, "attention in 16 bits", "nvidia-cudnn-cu13"},
      {"libnccl.so", {2}, "collectives", "nvidia-nccl-cu13"},
      {"libnvrtc.so", {13, 12}, "compiled steps", "nvidia-cuda-nvrtc"}};
  return all;
}

/// Files of the search path of libraries whose names begin so, without those of `versions`.
std::vector<std::string> other_versions(const std::string& name) {
  std::vector<std::string> found;
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  std::string_view folders = path == nullptr ? "" : path;
  while (!folders.empty()) {
    const std::string_view folder = folders.substr(0, folders.find(':'));
    folders.remove_prefix(std::min(folder.size() + 1, folders.size()));
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().filename().string().starts_with(name + ".")) {
        found.push_back(entry.path().string());
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

/// {"libraries", "problems"}
Json look_at_libraries() {
  Json libraries = Json::array();
  Json problems = Json::array();
  for (const LibraryChoice& wanted : wanted_libraries()) {
    std::string opened;
    std::string why;
    for (const int version : wanted.versions) {
      const std::string file = fmt::format("{}.{}", wanted.name, version);
      void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (library != nullptr) {
        const link_map* map = nullptr;
        dlinfo(library, RTLD_DI_LINKMAP, &map);
        opened = map == nullptr ? file : std::string(map->l_name);
        break;
      }
      why = why.empty() ? dlerror() : why;
    }
    if (!opened.empty()) {
      libraries.push_back(opened);
      continue;
    }
    const std::vector<std::string> others = other_versions(wanted.name);
    const std::string versions = fmt::format("{}", fmt::join(wanted.versions, " or "));
    const std::string wrong = others.empty()
                                  ? fmt::format("it is not found (expected version {})", versions)
                                  : fmt::format("it is of another version (expected {}, got {})",
                                                versions, others.front());
    problems.push_back({{"text", fmt::format("{}: {}, so {} are done without it; pip install {}",
                                             wanted.name, wrong, wanted.use, wanted.package)},
                        {"other_major", !others.empty()}});
  }
  return {{"libraries", libraries}, {"problems", problems}};
}

/// What `ask` says in a process of its own: a library may end it, and a driver must not be used
/// before a fork.
Json asked(const std::string& what, Json (*ask)()) {
  const ChildResult child = run_in_child(what, std::chrono::seconds(60),
                                         [ask](const SendReport& send) { send(json_text(ask())); });
  if (!child.problem.empty()) {
    fail_input({.thing = what,
                .wrong = fmt::format("the process that looks at it {}", child.problem),
                .advice = "look at nvidia-smi, and at the system's log"});
  }
  return parse_json(child.report);
}

}  // namespace

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

GpuFacts look_at_gpus() {
  const Json driver = asked("GPU", ask_driver);
  if (driver.contains("wrong")) {
    fail_input({.thing = "GPU",
                .wrong = driver["wrong"],
                .expected = driver.value("expected", ""),
                .got = driver.value("got", ""),
                .advice = driver["advice"]});
  }
  GpuFacts facts{.driver = driver["driver"], .gpus = {}, .libraries = {}, .problems = {}};
  for (const Json& gpu : driver["gpus"]) {
    facts.gpus.push_back({gpu["name"], gpu["capability"], gpu["memory"]});
  }
  const Json libraries = asked("CUDA's libraries", look_at_libraries);
  facts.libraries = libraries["libraries"].get<std::vector<std::string>>();
  for (const Json& problem : libraries["problems"]) {
    facts.problems.push_back({.text = problem["text"], .other_major = problem["other_major"]});
  }
  return facts;
}

bool GpuFacts::has_library(std::string_view name) const {
  return std::ranges::any_of(
      libraries, [&](const std::string& path) { return path.find(name) != std::string::npos; });
}

void check_architectures(const GpuFacts& facts, const std::vector<std::string>& architectures) {
  const GpuFact& gpu = facts.gpus.front();
  // 80 runs on 86 and 89, but 86 not on 80; 90a on 90 only; 100f on all of its family.
  const bool fits = std::ranges::any_of(architectures, [&](const std::string& architecture) {
    const bool exact = architecture.ends_with('a');
    const int built = std::atoi(architecture.c_str());
    const int there = std::atoi(gpu.capability.c_str());
    return exact ? built == there : built / 10 == there / 10 && built <= there;
  });
  if (!fits) {
    const bool has_own = gpu.capability >= "90" || gpu.capability.size() > 2;
    fail_input({.thing = gpu.name,
                .wrong = "the pack has no machine code for this GPU",
                .expected = fmt::format("compute capability {}", fmt::join(architectures, ", ")),
                .got = gpu.capability,
                .advice = fmt::format("make another pack: ./dev gpu pack --architectures {}{}",
                                      gpu.capability, has_own ? "a" : "")});
  }
}

}  // namespace tessera::app::first_day
