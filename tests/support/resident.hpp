// How much memory a process has.
#pragma once
#include <cstddef>
#include <fstream>
#include <string>

namespace tessera::testing {

/// Of a process of this machine ("self": this one), in KiB.
inline std::size_t resident_kib(const std::string& process = "self") {
  std::ifstream status("/proc/" + process + "/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      std::size_t kib = 0;
      status >> kib;
      return kib;
    }
  }
  return 0;
}

}  // namespace tessera::testing
