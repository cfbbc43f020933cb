// Calls that follow from schemas alone: operands of shapes and types that do not fit are refused;
// no call crashes. Each operator is in a process of its own.
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("operators refuse operands of shapes and types that do not fit") {
  std::size_t with_calls = 0;
  for (const Op* op : all_ops()) {
    if (op->name.starts_with("wrong_")) {
      continue;  // another test's
    }
    const ChildResult result =
        run_in_child("test", std::chrono::seconds(60), [&](const SendReport& send) {
          Recorder recorder(4, true);
          recorder.trying = [&](const std::string& call) { send("\n" + call); };
          make_samples(*op, recorder);
          send(recorder.by_op.contains(op->name) ? "\naccepted" : "\nnone");
        });
    const std::string last = result.report.substr(result.report.rfind('\n') + 1);
    INFO(last);
    CHECK(result.problem.empty());
    with_calls += last == "accepted" ? 1 : 0;
  }
  CHECK(with_calls > 200);
}
