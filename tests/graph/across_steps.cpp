// Steps whose update is left to the next one: where it is made then, what is kept until then, and
// the bits of the steps that they were split from.
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.passes;
import tessera.graph;

#include "program_text.hpp"

using namespace tessera;
using graph_test::body_of;
using graph_test::program;

namespace {

graph::AcrossSteps split(const std::string& body) {
  return graph::split_across_steps(program(body));
}

const std::string inputs =
    "input %0: f32[4] = a\n"
    "input %1: f32[4] = b\n"
    "input rows 0 %2: f32[4] = rows.0\n";

/// Both parameters are updated by one call, from values in memories of two kinds.
const std::string two_parameters = "number lr\n" + inputs +
                                   "section gradients\n"
                                   "  %3: f32[4] = mul(%2, %0)\n"
                                   "  %4: f32[4] = mul(%3, %1)\n"
                                   "  %5: f32[8] = memory.empty()\n"
                                   "  %6: f32[4] = memory.alias(%5; strides=[1], offset=4)\n"
                                   "  copy_(%6, %3)\n"
                                   "  %7: f32[4] = memory.alias(%5; strides=[1], offset=0)\n"
                                   "  copy_(%7, %2)\n"
                                   "section update\n"
                                   "  foreach_add_(%1, %0, %4, %6; alpha=1) {alpha=$lr}\n"
                                   "output %4 = loss\n";

using Named = std::map<std::string, Tensor>;

Tensor values(std::vector<float> all, std::int64_t size) {
  all.resize(static_cast<std::size_t>(size), 0.5F);
  return from_values(std::span<const float>(all), {size});
}

/// Runs a program of a step with what it needs of `all`, and returns the output.
std::vector<double> run(const Program& one, const std::string& executor, const Named& all,
                        const StepVariables& variables) {
  const auto made = graph::executor_of(one, {.executor = executor});
  Named given;
  for (const auto& [name, unused] : one.inputs) {
    given[name] = all.at(name);
  }
  made->begin(given);
  for (const Section& section : one.sections) {
    made->run(section.kind, variables);
  }
  const std::vector<double> loss =
      one.outputs.empty() ? std::vector<double>() : to_doubles(made->output("loss"));
  made->end();
  return loss;
}

}  // namespace

TEST_CASE("across steps: updates come where they are first used, in parts of their lists") {
  const graph::AcrossSteps all = split(two_parameters);
  REQUIRE(all.refusal == "");
  CHECK(body_of(all.middle) == "number before.lr\n" + inputs +
                                   "input pending %5: f32[8] = pending.1\n"
                                   "input pending %8: f32[4] = pending.0\n"
                                   "section gradients\n"
                                   "  %9: f32[4] = memory.alias(%5; strides=[1], offset=4)\n"
                                   "  foreach_add_(%0, %9; alpha=1) {alpha=$before.lr}\n"
                                   "  %3: f32[4] = mul(%2, %0)\n"
                                   "  foreach_add_(%1, %8; alpha=1) {alpha=$before.lr}\n"
                                   "  %4: f32[4] = mul(%3, %1)\n"
                                   "  copy_(%8, %4)\n"
                                   "  %6: f32[4] = memory.alias(%5; strides=[1], offset=4)\n"
                                   "  copy_(%6, %3)\n"
                                   "  %7: f32[4] = memory.alias(%5; strides=[1], offset=0)\n"
                                   "  copy_(%7, %2)\n"
                                   "section update\n"
                                   "output %4 = loss\n");
}

TEST_CASE("across steps: what is kept is memory that the step fills, or a copy") {
  const graph::AcrossSteps all = split(two_parameters);
  REQUIRE(all.refusal == "");
  CHECK(all.pending_bytes == 32 + 16);
  CHECK(graph_test::count(body_of(all.first), "foreach_add_") == 0);
  CHECK(graph_test::count(body_of(all.first), "copy_(") == 3);
  CHECK(graph_test::count(body_of(all.first), "memory.empty") == 0);
  CHECK(graph_test::count(body_of(all.last), "copy_(") == 2);
  CHECK(graph_test::count(body_of(all.last), "{alpha=$lr}") == 1);
  CHECK(graph_test::count(body_of(all.last), "{alpha=$before.lr}") == 2);
  CHECK(body_of(all.update) ==
        "number before.lr\n"
        "input %0: f32[4] = a\n"
        "input %1: f32[4] = b\n"
        "input pending %5: f32[8] = pending.1\n"
        "input pending %8: f32[4] = pending.0\n"
        "section update\n"
        "  %9: f32[4] = memory.alias(%5; strides=[1], offset=4)\n"
        "  foreach_add_(%1, %0, %8, %9; alpha=1) {alpha=$before.lr}\n");
}

TEST_CASE("across steps: what is kept is read before it is filled again") {
  const graph::AcrossSteps all = split(inputs +
                                       "section gradients\n"
                                       "  %3: f32[4] = memory.empty()\n"
                                       "  copy_(%3, %2)\n"
                                       "  %4: f32[4] = exp(%2)\n"
                                       "section update\n"
                                       "  add_(%1, %3; alpha=1)\n"
                                       "  add_(%0, %4; alpha=1)\n"
                                       "output %4 = loss\n");
  REQUIRE(all.refusal == "");
  CHECK(body_of(all.middle)
            .find("section gradients\n"
                  "  add_(%1, %3; alpha=1)\n"
                  "  copy_(%3, %2)\n"
                  "  add_(%0, %5; alpha=1)\n"
                  "  %4: f32[4] = exp(%2)\n"
                  "  copy_(%5, %4)\n") != std::string::npos);
}

TEST_CASE("across steps: any number of steps leaves the bits of steps that are whole") {
  const Program whole = program(two_parameters);
  const graph::AcrossSteps parts = split(two_parameters);
  for (const std::string& executor : graph::executor_names()) {
    for (int steps = 1; steps < 6; ++steps) {
      INFO(executor << ", " << steps << " steps");
      Named expected{{"a", values({1, 2}, 4)}, {"b", values({3, 5, 7}, 4)}};
      Named got{{"a", values({1, 2}, 4)},
                {"b", values({3, 5, 7}, 4)},
                {"pending.0", values({}, 4)},
                {"pending.1", values({}, 8)}};
      StepVariables variables;
      for (int step = 0; step < steps; ++step) {
        if (step > 0) {
          variables.numbers["before.lr"] = variables.numbers["lr"];
        }
        variables.numbers["lr"] = 0.1 / (step + 1);
        expected["rows.0"] = got["rows.0"] =
            values({static_cast<float>(step) + 0.25F, static_cast<float>(step)}, 4);
        // A series of four ends with the last program, the others with the rest.
        const bool is_last = steps == 4 && step == 3;
        const Program& part = step == 0 ? parts.first : is_last ? parts.last : parts.middle;
        CHECK(run(part, executor, got, variables) == run(whole, executor, expected, variables));
      }
      if (steps != 4) {
        CHECK(to_doubles(got["a"]) != to_doubles(expected["a"]));
        variables.numbers["before.lr"] = variables.numbers["lr"];
        run(parts.update, executor, got, variables);
      }
      CHECK(to_doubles(got["a"]) == to_doubles(expected["a"]));
      CHECK(to_doubles(got["b"]) == to_doubles(expected["b"]));
    }
  }
}

TEST_CASE("across steps: updates come before the collectives, in their order") {
  const auto gather = [](const std::string& whole, const std::string& part) {
    return "  all_gather_into(" + whole + ", " + part + "; group=ranks 0 1, identity=1)\n";
  };
  const graph::AcrossSteps all = split(inputs +
                                       "section gradients\n"
                                       "  %3: f32[8] = memory.empty()\n" +
                                       gather("%3", "%1") +
                                       "  wait(%3)\n"
                                       "  %4: f32[8] = exp(%3)\n"
                                       "  %5: f32[8] = memory.empty()\n" +
                                       gather("%5", "%0") +
                                       "  wait(%5)\n"
                                       "  %6: f32[4] = memory.empty()\n"
                                       "  copy_(%6, %2)\n"
                                       "  wait_readers(%0, %1; group=ranks 0 1)\n"
                                       "section update\n"
                                       "  foreach_add_(%0, %1, %6, %6; alpha=1)\n"
                                       "output %4 = loss\n");
  REQUIRE(all.refusal == "");
  CHECK(body_of(all.middle)
            .find("section gradients\n"
                  "  foreach_add_(%1, %6; alpha=1)\n"
                  "  foreach_add_(%0, %6; alpha=1)\n"
                  "  %3: f32[8] = memory.empty()\n" +
                  gather("%3", "%1")) != std::string::npos);
  // Then the first gather is issued while the second parameter is not updated yet.
  Program moved = all.middle;
  graph::run_passes(moved, std::vector<std::string>{"lifetimes", "early_issues"});
  const std::string text = body_of(moved);
  CHECK(text.find("all_gather_into(%3, %1") < text.find("foreach_add_(%0"));
}

TEST_CASE("across steps: communication of the update stays before that of the next step") {
  const graph::AcrossSteps all = split(inputs +
                                       "section gradients\n"
                                       "  %3: f32[4] = mul(%2, %2)\n"
                                       "  %4: f32[4] = all_reduce(%3; op=sum, group=ranks 0 1)\n"
                                       "section update\n"
                                       "  %5: f32[4] = all_reduce(%0; op=max, group=ranks 0 1)\n"
                                       "  add_(%0, %5; alpha=1)\n"
                                       "  add_(%1, %4; alpha=1)\n"
                                       "output %4 = loss\n");
  REQUIRE(all.refusal == "");
  const std::string middle = body_of(all.middle);
  CHECK(middle.find("op=max") < middle.find("op=sum"));
  CHECK(middle.find("add_(%1") > middle.find("mul("));  // nothing before the end needs it
}

TEST_CASE("across steps: programs that leave nothing say why") {
  CHECK(split(inputs + "section step\n  add_(%0, %2; alpha=1)\n").refusal ==
        "it has no update of its own");
  CHECK(split(inputs + "section gradients\n  %3: f32[4] = exp(%0)\nsection update\n").refusal ==
        "it has no update of its own");
  const std::string begin = inputs + "section gradients\n  %3: f32[4] = exp(%0)\n";
  CHECK(split(begin + "section update\n  %4: f32[4] = neg(%3)\noutput %4 = loss\n").refusal ==
        "it computes the output 'loss'");
  CHECK(split(begin + "section update\n  add_(%2, %3; alpha=1)\n").refusal ==
        "section 'update', instruction 1 (add_(%2, %3; alpha=1)) writes a tensor that is another "
        "one in the next step");
  CHECK(split(begin + "  all_reduce_coalesced_(%3; op=sum, group=ranks 0 1, identity=1, step=0)\n"
                      "section update\n  wait(%3)\n  add_(%0, %3; alpha=1)\n")
            .refusal ==
        "section 'update', instruction 1 (wait(%3)) waits for what was issued before");
}
