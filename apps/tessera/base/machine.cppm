export module tessera.app.base:machine;

import :standard;

// This machine, as far as a program may use it.

export namespace tessera::app {

struct Machine {
  std::string cpu;                // the model's name
  int cores = 1;                  // logical ones in the machine
  int usable_cores = 1;           // those that this process may use (its affinity)
  double core_quota = 0;          // the control group's limit in cores; 0 = none
  std::vector<std::string> simd;  // instruction sets, of those that kernels use
  std::uint64_t memory = 0;
  std::uint64_t memory_available = 0;
  std::uint64_t memory_limit = 0;  // the control group's; 0 = none
};
Machine look_at_machine();

/// The instruction sets that kernels use and these CPU flags (of /proc/cpuinfo) contain.
std::vector<std::string> simd_of_flags(std::string_view flags);

/// The limits of such a machine, one sentence each.
std::vector<std::string> advice(const Machine& machine);

}  // namespace tessera::app
