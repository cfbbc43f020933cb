module;
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <vector>
module tessera.runs;

import tessera.base;

namespace tessera::runs {

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Memory process_memory() {
  Memory memory;
  std::uint64_t pages = 0;
  std::uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  memory.resident = resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  memory.peak = std::max(memory.resident, static_cast<std::uint64_t>(usage.ru_maxrss) * 1024);
  return memory;
}

}  // namespace tessera::runs
