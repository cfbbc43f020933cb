// Passes of the shipped plugin `lists`: what they leave of programs that are written by hand.
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.passes;

#include "program_text.hpp"

using namespace tessera;
using graph_test::program;
using testing::error_of;

namespace {

std::string after(const std::vector<std::string>& passes, const std::string& body) {
  Program changed = program(body);
  graph::run_passes(changed, passes);
  return graph_test::body_of(changed);
}

const std::string three_inputs =
    "input %0: f32[4] = a\n"
    "input %1: f32[4] = b\n"
    "input %2: f32[4] = c\n";

std::string reduced(const std::string& x, const std::string& more = "op=sum, group=ranks 0 1") {
  return "  all_reduce_coalesced_(" + x + "; " + more + ", identity=1, step=0)\n";
}

/// How many collectives are issued after `buckets`.
int issued(const std::string& body) {
  return graph_test::count(after({"buckets"}, three_inputs + "section step\n" + body),
                           "coalesced_");
}

}  // namespace

TEST_CASE("buckets: neighbouring reductions become one, which the first wait completes") {
  const std::string text = after({"buckets"}, three_inputs + "section step\n" + reduced("%0") +
                                                  "  %3: f32[4] = exp(%1)\n" + reduced("%2, %3") +
                                                  "  wait(%2)\n"
                                                  "  %4: f32[4] = neg(%1)\n"
                                                  "  wait(%0)\n"
                                                  "output %3 = y\n");
  const std::size_t identity = text.find("identity=") + 9;
  const std::string number = text.substr(identity, text.find(',', identity) - identity);
  CHECK(number != "1");  // ranks compare what both calls are
  CHECK(text == three_inputs +
                    "section step\n"
                    "  %3: f32[4] = exp(%1)\n"
                    "  all_reduce_coalesced_(%0, %2, %3; op=sum, group=ranks 0 1, identity=" +
                    number +
                    ", step=0)\n"
                    "  wait(%0)\n"
                    "  %4: f32[4] = neg(%1)\n"
                    "output %3 = y\n");
}

TEST_CASE("buckets: what is between two reductions, or differs between them, keeps them apart") {
  const std::string waits = "  wait(%0)\n  wait(%1)\n";
  CHECK(issued(reduced("%0") + reduced("%1") + waits) == 1);
  // Another operation or group; other communication; a wait; a use of what is reduced.
  CHECK(issued(reduced("%0") + reduced("%1", "op=max, group=ranks 0 1") + waits) == 2);
  CHECK(issued(reduced("%0") + reduced("%1", "op=sum, group=ranks 0 2") + waits) == 2);
  CHECK(issued(reduced("%0") + "  all_reduce_(%2; op=sum, group=ranks 0 1)\n" + reduced("%1") +
               waits) == 2);
  CHECK(issued(reduced("%0") + "  wait(%0)\n" + reduced("%1") + "  wait(%1)\n") == 2);
  // Of other types, and of more than 16 MiB together.
  CHECK(issued("  %3: f64[4] = memory.full(1)\n" + reduced("%0") + reduced("%3") +
               "  wait(%0)\n  wait(%3)\n") == 2);
  const auto sized = [](const std::string& count) {
    return "  %3: f32[" + count + "] = memory.full(1)\n  %4: f32[" + count +
           "] = memory.full(1)\n" + reduced("%3") + reduced("%4") + "  wait(%3)\n  wait(%4)\n";
  };
  CHECK(issued(sized("2097152")) == 1);
  CHECK(issued(sized("2097153")) == 2);
}

TEST_CASE("buckets: reductions into shards are joined, gathers of other memories are not") {
  const std::string wholes =
      "  %3: f32[8] = memory.full(1)\n"
      "  %4: f32[8] = memory.full(2)\n";
  const auto scatter = [](const std::string& shard, const std::string& whole) {
    return "  reduce_scatter_into(" + shard + ", " + whole +
           "; op=sum, group=ranks 0 1, identity=1)\n";
  };
  const std::string text =
      after({"buckets"}, three_inputs + "section step\n" + wholes + scatter("%0", "%3") +
                             scatter("%1", "%4") + "  wait(%0)\n  wait(%1)\n");
  CHECK(text.find("reduce_scatter_into(%0, %1, %3, %4; op=sum") != std::string::npos);
  CHECK(text.ends_with("  wait(%0)\n"));
  const std::string gathers = three_inputs + "section step\n" + wholes +
                              "  all_gather_into(%3, %0; group=ranks 0 1, identity=1)\n"
                              "  all_gather_into(%4, %1; group=ranks 0 1, identity=1)\n"
                              "  wait(%3)\n"
                              "  wait(%4)\n";
  CHECK(after({"buckets"}, gathers) == gathers);
}

TEST_CASE("split_lists and join_lists: lists are cut by place and joined again") {
  const std::string body = three_inputs +
                           "section step\n"
                           "  foreach_add_(%0, %1, %2, %2; alpha=0.5)\n"
                           "  foreach_mul_(%0, %1; value=2)\n";
  const std::string cut = three_inputs +
                          "section step\n"
                          "  foreach_add_(%0, %2; alpha=0.5)\n"
                          "  foreach_add_(%1, %2; alpha=0.5)\n"
                          "  foreach_mul_(%0; value=2)\n"
                          "  foreach_mul_(%1; value=2)\n";
  CHECK(after({"split_lists"}, body) == cut);
  CHECK(after({"split_lists", "join_lists"}, body) == body);
  CHECK(after({"join_lists"}, cut) == body);
  // What is at a place is written from what is at the same place.
  const auto add = [](const std::string& lists) {
    return program(three_inputs + "section step\n  foreach_add_(" + lists + "; alpha=0.5)\n");
  };
  graph::verify_same(add("%0, %1, %2, %2"), add("%1, %0, %2, %2"));
  CHECK_THROWS_WITH(graph::verify_same(add("%0, %1"), add("%0, %2")),
                    Catch::Contains("input a has other values"));
}

TEST_CASE("join_lists: calls of other arguments, on one memory or with writes between stay") {
  for (const std::string& calls : std::vector<std::string>{
           "  foreach_mul_(%0; value=2)\n  foreach_mul_(%1; value=3)\n",
           "  foreach_mul_(%0; value=2)\n  foreach_mul_(%0; value=2)\n",
           "  foreach_mul_(%0; value=2)\n  %3: f32[4] = exp(%2)\n  foreach_mul_(%1; value=2)\n"}) {
    INFO(calls);
    const std::string body = three_inputs + "section step\n" + calls;
    CHECK(after({"join_lists"}, body) == body);
  }
}

TEST_CASE("passes of plugins have their names, and an unknown one is offered the nearest") {
  CHECK(graph::find_change("buckets").name == "buckets");
  CHECK(error_of([] {
          static_cast<void>(graph::find_change("bucket"));
        }).ends_with("did you mean 'buckets'?"));
  for (const std::string& name : graph::default_passes()) {
    CHECK(graph::find_change(name).facts.is_default);
  }
}
