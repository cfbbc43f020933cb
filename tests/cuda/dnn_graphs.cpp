// The plugin's graphs of attention in the real cuDNN, without a GPU: for devices that this program
// describes, the library has an engine for each form, and compiles its kernel. A driver's library
// without a device must be there, such as the toolkit's stub: what the library then asks of it ends
// the plan.
//   test_dnn_graphs [folder of libcuda.so.1]
// Exit status 77: there is no cuDNN 9.16.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

import tessera.base;

#include "dnn.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Published numbers of a device, in the form that the library's error texts ask for.
std::string device(const char* name, int version, int multiprocessors, int shared_memory,
                   int l2_bytes, long memory) {
  return fmt::format(
      R"({{"deviceName": "{}", "deviceVer": {}, "multiProcessorCount": {}, )"
      R"("maxSharedMemoryPerBlockOptin": {}, "l2CacheSize": {}, "totalGlobalMem": {}, )"
      R"("driverVer": 13000, "cudaDeviceId": 0, "maxGridSize": [2147483647, 65535, 65535], )"
      R"("maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "warpSize": 32, )"
      R"("maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, )"
      R"("maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, )"
      R"("maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, )"
      R"("smClockRateKHz": 1980000, "memClockRateKHz": 2619000}})",
      name, version, multiprocessors, shared_memory, l2_bytes, memory);
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
  if (count > 1) {
    dlopen((std::string(words[1]) + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
  if (Dnn::version() < 91600) {
    std::puts("there is no cuDNN 9.16");
    return 77;
  }
  const std::pair<const char*, std::string> devices[] = {
      {"H100", device("NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 85520809984)},
      {"A100", device("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85198045184)},
      {"B200", device("NVIDIA B200", 1000, 148, 232448, 132644864, 191509561344)}};
  const std::vector<Case> cases = {{1024, 12, 2, 128, false},
                                   {1024, 28, 4, 128, false},
                                   {1024, 8, 8, 64, true},
                                   {1000, 4, 1, 128, true}};
  int failures = 0;
  for (const auto& [name, on] : devices) {
    for (const Case& c : cases) {
      for (const DType type : {DType::bf16, DType::f16}) {
        for (const bool backward : {false, true}) {
          std::string reason;
          std::string outcome;
          try {
            const auto plan = DnnPlan::make(form_of(c, type, backward), nullptr, on, &reason);
            const std::size_t most =
                Dnn::workspace_bytes(2, c.times, c.heads, c.key_heads, c.dim, backward);
            outcome = plan == nullptr ? "no plan: " + reason
                      : plan->workspace() > most
                          ? fmt::format("workspace {} above {}", plan->workspace(), most)
                          : fmt::format("plan, {} bytes", plan->workspace());
            failures += plan != nullptr && plan->workspace() <= most ? 0 : 1;
          } catch (const std::exception& error) {
            outcome = error.what();
            ++failures;
          }
          std::printf("%s %s times %ld heads %ld/%ld dim %ld%s%s: %s\n", name,
                      std::string(name_of(type)).c_str(), c.times, c.heads, c.key_heads, c.dim,
                      c.windowed ? " window" : "", backward ? " backward" : "", outcome.c_str());
        }
      }
    }
  }
  std::printf("version %zu, %d failures\n", Dnn::version(), failures);
  return failures == 0 ? 0 : 1;
}
