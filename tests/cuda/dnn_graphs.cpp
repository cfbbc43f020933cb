// The plugin's graphs of attention in cuDNN, without a GPU: for the devices that a folder
// describes, the library has an engine for each form, and compiles its kernel. The real library
// needs a driver's library without a device, such as the toolkit's stub: what it then asks of it
// ends the plan.
//   test_dnn_graphs DEVICES [folder of libcuda.so.1]
// Exit status 77: there is no cuDNN 9.16.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

import tessera.base;

#include "dnn.hpp"
#include "watched_by_hand.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

struct Described {
  std::string name;
  std::string text;
};

/// The descriptions in a folder, by their names.
std::vector<Described> devices_in(const std::string& folder) {
  std::vector<Described> devices;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") {
      std::ifstream file(entry.path());
      devices.push_back({entry.path().stem().string(), {std::istreambuf_iterator<char>(file), {}}});
    }
  }
  std::ranges::sort(devices, {}, &Described::name);
  return devices;
}

struct Case {
  std::int64_t times, heads, key_heads, dim;
  bool windowed;
};

DnnForm form_of(const Case& c, DType type, bool backward) {
  DnnForm form = {.backward = backward,
                  .type = type,
                  .batches = 2,
                  .times = c.times,
                  .heads = c.heads,
                  .key_heads = c.key_heads,
                  .dim = c.dim,
                  .windowed = c.windowed};
  const bool of_keys[] = {false, true, true, false, false, false, true, true};
  for (std::size_t i = 0; i < form.strides.size(); ++i) {
    const std::int64_t heads = of_keys[i] ? c.key_heads : c.heads;
    form.strides[i] = {c.times * heads * c.dim, heads * c.dim, c.dim};
  }
  return form;
}

}  // namespace

int main(int count, char** words) {
  const WatchedThread& watched = WatchedByHand::nobody();
  if (count < 2) {
    std::puts("usage: test_dnn_graphs DEVICES [folder of libcuda.so.1]");
    return 2;
  }
  if (count > 2) {
    dlopen((std::string(words[2]) + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
  if (Dnn::version() < 91600) {
    std::puts("there is no cuDNN 9.16");
    return 77;
  }
  const std::vector<Described> devices = devices_in(words[1]);
  const std::vector<Case> cases = {{1024, 12, 2, 128, false},
                                   {1024, 28, 4, 128, false},
                                   {1024, 8, 8, 64, true},
                                   {1000, 4, 1, 128, true}};
  int failures = devices.empty() ? 1 : 0;
  for (const auto& [name, on] : devices) {
    const std::string again = DnnPlan::describe(watched, nullptr, on);
    if (DnnPlan::describe(watched, nullptr, again) != again) {
      std::printf("%s: what the library writes of it is not what it reads: %s\n", name.c_str(),
                  again.c_str());
      ++failures;
    }
    for (const Case& c : cases) {
      for (const DType type : {DType::bf16, DType::f16}) {
        for (const bool backward : {false, true}) {
          std::string reason;
          std::string outcome;
          try {
            const auto plan =
                DnnPlan::make(watched, form_of(c, type, backward), nullptr, on, &reason);
            const std::size_t most =
                Dnn::workspace_bytes(2, c.times, c.heads, c.key_heads, c.dim, backward);
            outcome = plan == nullptr ? "no plan: " + reason
                      : plan->workspace() > most
                          ? fmt::format("workspace {} above {}", plan->workspace(), most)
                          : fmt::format("plan, {} bytes", plan->workspace());
            failures += plan != nullptr && plan->workspace() <= most ? 0 : 1;
            if (plan != nullptr) {
              plan->destroy(watched);
            }
          } catch (const std::exception& error) {
            outcome = error.what();
            ++failures;
          }
          std::printf("%s %s times %ld heads %ld/%ld dim %ld%s%s: %s\n", name.c_str(),
                      std::string(name_of(type)).c_str(), c.times, c.heads, c.key_heads, c.dim,
                      c.windowed ? " window" : "", backward ? " backward" : "", outcome.c_str());
        }
      }
    }
  }
  std::printf("version %zu, %zu devices, %d failures\n", Dnn::version(), devices.size(), failures);
  return failures == 0 ? 0 : 1;
}
