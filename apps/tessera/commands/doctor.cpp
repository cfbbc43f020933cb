#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "commands/commands.hpp"
#include "machine.hpp"
#include "table.hpp"

import tessera.base;

namespace tessera::app {

int run_doctor() {
  const Machine m = look_at_machine();
  const std::string quota =
      m.core_quota > 0 ? fmt::format(", {:.1f} cores' time allowed", m.core_quota) : "";
  const std::string limit =
      m.memory_limit > 0 ? fmt::format(", limited to {}", format_bytes(m.memory_limit)) : "";
  std::string text =
      format_table({{"processor", m.cpu.empty() ? "unknown" : m.cpu},
                    {"cores", fmt::format("{} usable of {}{}", m.usable_cores, m.cores, quota)},
                    {"SIMD", m.simd.empty() ? "none" : join_words(m.simd)},
                    {"memory", fmt::format("{} available of {}{}", format_bytes(m.memory_available),
                                           format_bytes(m.memory), limit)},
                    {"/dev/shm", fmt::format("{} free of {}", format_bytes(m.shared_memory_free),
                                             format_bytes(m.shared_memory))}});
  text += "\nWhat limits what\n";
  for (const std::string& line : advice(m)) {
    text += "  " + line + "\n";
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace tessera::app
