// A target under libFuzzer: TESSERA_FUZZ_TARGET names it, and TESSERA_FUZZ_CORPUS a folder into
// which its seeds are written.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "target.hpp"

namespace {
const fuzz::Target* chosen = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  const char* const name = std::getenv("TESSERA_FUZZ_TARGET");
  chosen = fuzz::find_target(name != nullptr ? name : "");
  if (chosen == nullptr) {
    std::fputs("fuzz: TESSERA_FUZZ_TARGET must name a target:", stderr);
    for (const fuzz::Target* const one : fuzz::targets()) {
      std::fprintf(stderr, " %s", one->name);
    }
    std::fputs("\n", stderr);
    std::exit(2);
  }
  if (const char* const folder = std::getenv("TESSERA_FUZZ_CORPUS")) {
    int number = 0;
    for (const std::string& seed : fuzz::seeds_of(*chosen)) {
      std::ofstream(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary)
          << seed;
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::run(*chosen, {reinterpret_cast<const char*>(data), size});
  return 0;
}
