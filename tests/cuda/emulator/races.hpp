// The check of every load and store of a kernel: whether the address may be used, and whether
// another thread uses it without an order between the two.
#pragma once
#include <cstddef>

namespace emulator {

struct Launch;

/// Begins a launch: what earlier ones did is in order before it.
void begin_race_check(const Launch& launch);

/// Accesses of the running thread that the compiler does not see.
void check_load(const void* at, std::size_t bytes);
void check_store(const void* at, std::size_t bytes);

}  // namespace emulator
