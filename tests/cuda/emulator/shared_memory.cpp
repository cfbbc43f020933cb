// Belongs to each library of kernels: where its shared memory is.
#include <cstddef>

extern "C" {
// Defined by the linker; null where no kernel has shared memory.
extern std::byte __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern std::byte __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));

__attribute__((visibility("default"))) std::byte* emulated_shared_memory(std::size_t* bytes) {
  *bytes = static_cast<std::size_t>(__stop_emulated_shared - __start_emulated_shared);
  return __start_emulated_shared;
}
}
