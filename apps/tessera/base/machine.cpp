module;
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
module tessera.app.base;

import tessera.base;

namespace tessera::app {
namespace {

std::string first_line(const char* path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

/// The value in a line "name   : value" of /proc/cpuinfo or /proc/meminfo.
std::string field_of(const char* path, std::string_view name) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(name)) {
      continue;
    }
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// "16384 kB" in bytes.
std::uint64_t kilobytes(const std::string& text) {
  std::uint64_t value = 0;
  std::istringstream(text) >> value;
  return value * 1024;
}

std::uint64_t memory_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::uint64_t limit = 0;
    if (std::istringstream(first_line(path)) >> limit; limit > 0 && limit < (1ULL << 60)) {
      return limit;
    }
  }
  return 0;
}

double core_quota() {
  double quota = 0;
  double period = 0;
  std::istringstream text(first_line("/sys/fs/cgroup/cpu.max"));  // "max 100000" without a limit
  return text >> quota >> period && period > 0 ? quota / period : 0;
}

}  // namespace

std::vector<std::string> simd_of_flags(std::string_view flags) {
  struct Set {
    std::string_view flag;
    const char* name;
  };
  constexpr Set sets[] = {{"sse4_2", "SSE4.2"},
                          {"avx2", "AVX2"},
                          {"fma", "FMA"},
                          {"avx512f", "AVX-512"},
                          {"avx512_bf16", "AVX-512 bf16"},
                          {"avx512_fp16", "AVX-512 f16"},
                          {"amx_bf16", "AMX bf16"},
                          {"asimd", "NEON"},
                          {"bf16", "NEON bf16"},
                          {"sve", "SVE"}};
  std::vector<std::string> words;
  std::istringstream stream{std::string(flags)};
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  std::vector<std::string> found;
  for (const Set& set : sets) {
    if (std::ranges::find(words, set.flag) != words.end()) {
      found.emplace_back(set.name);
    }
  }
  return found;
}

Machine look_at_machine() {
  Machine m;
  m.cpu = field_of("/proc/cpuinfo", "model name");
  m.cores = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  m.usable_cores = available_cores();
  m.core_quota = core_quota();
  const std::string flags = field_of("/proc/cpuinfo", "flags");
  m.simd = simd_of_flags(flags.empty() ? field_of("/proc/cpuinfo", "Features") : flags);
  m.memory = kilobytes(field_of("/proc/meminfo", "MemTotal"));
  m.memory_available = kilobytes(field_of("/proc/meminfo", "MemAvailable"));
  m.memory_limit = memory_limit();
  return m;
}

std::vector<std::string> advice(const Machine& m) {
  std::vector<std::string> all;
  double cores = m.usable_cores;
  if (m.core_quota > 0 && m.core_quota < cores) {
    cores = m.core_quota;
    all.push_back(
        fmt::format("The control group allows {:.1f} cores' time of {}: more threads than "
                    "that are stopped in turns.",
                    m.core_quota, m.usable_cores));
  } else if (m.usable_cores < m.cores) {
    all.push_back(fmt::format("This process may use {} of the machine's {} cores (its affinity).",
                              m.usable_cores, m.cores));
  }
  all.push_back(
      fmt::format("Up to {} rank(s) get one core each; with more ranks, the ranks share "
                  "cores and collectives sleep instead of spinning.",
                  static_cast<int>(std::max(1.0, std::floor(cores)))));
  const auto has = [&](const char* name) {
    return std::ranges::find(m.simd, name) != m.simd.end();
  };
  if (!has("AVX2") && !has("NEON")) {
    all.emplace_back("No AVX2 or NEON: the slowest kernels are used.");
  } else if (!has("AVX-512 bf16") && !has("AMX bf16") && !has("NEON bf16")) {
    all.emplace_back("No bf16 instructions: f32 products are as fast as bf16 ones here.");
  }
  const std::uint64_t memory =
      m.memory_limit > 0 ? std::min(m.memory_limit, m.memory_available) : m.memory_available;
  all.push_back(
      fmt::format("Memory: AdamW in f32 needs 16 bytes per parameter, plus activations; "
                  "{} are enough for about {:.1f} billion fully sharded parameters, "
                  "over all ranks.",
                  format_bytes(memory), static_cast<double>(memory) * 0.7 / 16e9));
  return all;
}

}  // namespace tessera::app
