#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
#include <cstdio>
#include <string>

#include "skip.hpp"

namespace tessera::testing {
namespace {

bool skipped = false;

}  // namespace

void skip(const std::string& reason) {
  skipped = true;
  std::printf("skipped: %s\n", reason.c_str());
}

}  // namespace tessera::testing

int main(int argc, char** argv) {
  const int code = Catch::Session().run(argc, argv);
  return code == 0 && tessera::testing::skipped ? 77 : code;
}
