// Compiles sources of generated loops as the plugin does, by NVRTC itself. Exits with 77 where
// there is none.
//   test_loop_sources CAPABILITY FILE.cu...
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>

#include "nvrtc.hpp"

namespace {

constexpr int skipped = 77;

int compile_all(int count, char** words) {
  for (int i = 2; i < count; ++i) {
    std::ostringstream text;
    text << std::ifstream(words[i], std::ios::binary).rdbuf();
    const tessera::cuda::CompiledSource made =
        tessera::cuda::compile_source(std::move(text).str(), words[1]);
    if (!made.missing.empty()) {
      std::printf("skipped: %s\n", made.missing.c_str());
      return skipped;
    }
    if (!made.code.starts_with("\177ELF")) {
      std::printf("%s: what NVRTC has made is no code of a GPU\n", words[i]);
      return 1;
    }
    std::printf("%s: %zu bytes of code for sm_%s\n", words[i], made.code.size(), words[1]);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::puts("usage: test_loop_sources CAPABILITY FILE.cu...");
    return 1;
  }
  try {
    return compile_all(count, words);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
