// libnvidia-ml.so.1: how many devices there are and their memory, without a context.
#include <cstdlib>

#include "memory.hpp"

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* value = std::getenv("TESSERA_EMULATOR_DEVICES");
  *count = value == nullptr ? 2U : static_cast<unsigned>(std::atoi(value));
  return 0;
}

// A device's handle is its number + 1.
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  unsigned count = 0;
  nvmlDeviceGetCount_v2(&count);
  *device = reinterpret_cast<void*>(std::uintptr_t{index} + 1);
  return index < count ? 0 : 2;  // an invalid argument
}
int nvmlDeviceGetHandleByUUID(const char*, void**) { return 6; }  // not found
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = total_free_used[1] = emulator::Memory::device_bytes();
  total_free_used[2] = 0;
  return 0;
}

}  // extern "C"
