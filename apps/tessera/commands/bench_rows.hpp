// The tables of `tessera bench` that have a source of their own.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "commands/commands.hpp"

namespace tessera::app {

/// Kernels on plain tensors, at one thread and at all: {name, threads, us, gb_per_second or gflops,
/// bound, share_of_bound}.
nlohmann::ordered_json bench_kernels(const BenchArguments& arguments);

}  // namespace tessera::app
