// How tests set up the emulator within their process. A program that runs on it sees only CUDA's
// own functions and the variables of the environment in docs/emulator.md.
#pragma once
#include <cstdint>

extern "C" {

/// Drops all queued work and forgets the error that was found. Memory and streams stay.
void emulator_restart(void);
/// The order of streams, blocks and threads from now on.
void emulator_set_seed(std::uint64_t seed);
/// How long queued work waits where nobody needs it; 0: for ever.
void emulator_set_idle(std::int64_t microseconds);
/// Modes of the driver from now on (modes.hpp); what they were.
std::uint64_t emulator_set_places(std::uint64_t places);
bool emulator_set_copies_block(bool block);
bool emulator_set_lazy_loading(bool lazy);
/// Kernels launched since the process began.
std::uint64_t emulator_launches(void);
/// The name of the kernel that was launched last.
const char* emulator_last_kernel(void);
/// The priority of the stream in which a kernel was launched last.
int emulator_last_priority(void);
/// Copies from a device to the host since the process began.
std::uint64_t emulator_copies_to_host(void);
/// Graphs launched since the process began.
std::uint64_t emulator_graph_launches(void);
/// Products queued by cublasLtMatmul.
std::uint64_t emulator_products(void);
/// Whether the library finds no algorithm from now on, for products that it has not seen.
void emulator_refuse_products(bool refuse);
/// Which of the algorithms for a product is fast from now on: 0, the one that is advised, to 3.
void emulator_set_fastest_algorithm(std::uint64_t number);
/// That of the product which was queued last.
std::uint64_t emulator_last_algorithm(void);
/// Sources that nvrtcCompileProgram has compiled.
std::uint64_t emulator_compilations(void);
/// Attention queued by cudnnBackendExecute, forward and backward.
std::uint64_t emulator_attentions(void);
/// Whether the library has engines whose results differ from call to call only, from now on.
void emulator_refuse_determinism(bool refuse);
/// The device of the calling thread's context; -1: there is none, or the driver cannot be used.
int emulator_current_device(void);
/// Waits for the device of the calling thread's context where TESSERA_EMULATOR_BLOCKS names the
/// function, and for ever where TESSERA_EMULATOR_HANGS does.
void emulator_wait_where_asked(const char* function);
/// Collectives of NCCL's that were called with memory of symmetric windows.
std::uint64_t emulator_window_calls(void);
/// Bytes of ncclMemAlloc that were not freed.
std::uint64_t emulator_window_memory(void);
/// Bytes of a device that are in use.
unsigned long long emulator_used_memory(int device);
}
