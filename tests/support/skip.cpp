#include "skip.hpp"

#include <cstdio>
#include <string>

namespace tessera::testing {
namespace {

bool any = false;

}  // namespace

void skip(const std::string& reason) {
  any = true;
  std::printf("skipped: %s\n", reason.c_str());
}

bool skipped() { return any; }

}  // namespace tessera::testing
