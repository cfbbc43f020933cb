// Steps whose update is left to the next one: where it is made then, what is kept until then, and
// the bits of the steps that they were split from.
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.record;
import tessera.graph;

#include "errors.hpp"
#include "program_text.hpp"

using namespace tessera;
using graph_test::body_of;
using graph_test::program;

namespace {

graph::AcrossSteps split(const std::string& body) {
  const std::vector<std::string> anew = {"rows."};
  return graph::split_across_steps(program(body), anew);
}

}  // namespace

TEST_CASE("across steps: updates come where they are first used, in the order of these uses") {
  const std::string inputs =
      "input %0: f32[4] = a\n"
      "input %1: f32[4] = b\n"
      "input %2: f32[4] = rows.0\n";
  const graph::AcrossSteps all = split("number lr\n" + inputs +
                                       "section gradients\n"
                                       "  %3: f32[4] = mul(%2, %0)\n"
                                       "  %4: f32[4] = mul(%3, %1)\n"
                                       "  %5: f32[4] = memory.empty()\n"
                                       "  copy_(%5, %3)\n"
                                       "section update\n"
                                       "  foreach_add_(%1, %0, %4, %5; alpha=1) {alpha=$lr}\n"
                                       "output %4 = loss\n");
  CHECK(all.refusal == "");
}
