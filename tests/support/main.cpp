#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
#include "skip.hpp"

int main(int argc, char** argv) {
  const int code = Catch::Session().run(argc, argv);
  return code == 0 && tessera::testing::skipped() ? 77 : code;
}
