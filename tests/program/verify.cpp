// The verifier refuses each kind of wrong program, and programs that leave other values.
#include <string>
#include <utility>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;

#include "program_text.hpp"

using namespace tessera;
using graph_test::program;
using testing::contains;
using testing::error_of;

namespace {

std::string error_in(const std::string& body) {
  return error_of([&] { graph::verify(program(body)); });
}

std::string error_of_same(const std::string& before, const std::string& after) {
  graph::verify(program(before));
  graph::verify(program(after));
  return error_of([&] { graph::verify_same(program(before), program(after)); });
}

const std::string good =
    "input %0: f32[4, 2] = x\n"
    "section step\n"
    "  %1: f32[4, 2] = exp(%0)\n"
    "  %2: f32[2, 4] = transpose(%1; dim0=0, dim1=1)\n"
    "  %3: f32[4] = memory.alias(%2; strides=[2], offset=1)\n"
    "  memory.release(%1)\n"
    "  memory.restore(%1)\n"
    "  copy_(%1, %0)\n"
    "  %4: f32[4] = neg(%3)\n"
    "output %4 = y\n";

}  // namespace

TEST_CASE("a right program passes") {
  CHECK(error_in(good) == "no error");
  CHECK(error_of_same(good, good) == "no error");
}

TEST_CASE("numbers that are not defined, or twice, are refused") {
  Program wrong = program(good);
  wrong.sections[0].instructions[6].in = {TensorIndex(4)};
  CHECK(error_of([&] { graph::verify(wrong); }) ==
        "program: section 'step', instruction 7 (%4: f32[4] = neg(%4)): %4 is used before it is "
        "defined");
  wrong = program(good);
  wrong.sections[0].instructions[6].out = {TensorIndex(1)};
  CHECK(contains(error_of([&] { graph::verify(wrong); }),
                 "instruction 7 (%1: f32[4, 2] = neg(%3)"
                 "): %1 is defined twice"));
  wrong = program(good);
  wrong.outputs["y"] = TensorIndex(9);
  CHECK(
      contains(error_of([&] { graph::verify(wrong); }), "output 'y' is %9, which is not defined"));
  wrong = program(good);
  wrong.inputs["again"] = {.tensor = TensorIndex(0)};
  CHECK(contains(error_of([&] { graph::verify(wrong); }), "is %0, which is another input"));
}

TEST_CASE("roles and sections that do not fit are refused") {
  const std::string head = "input %0: f32[4, 2] = x\ninput parameter %1: f32[2] = w\n";
  const std::string updates = "optimizer 0 updates ";
  CHECK(error_in(head + updates + "w\nsection update\n") == "no error");
  CHECK(
      contains(error_in(head + updates + "x\nsection update\n"),
               "optimizer 0 updates 'x', which is not a parameter (expected an input with the role "
               "parameter, got the role other)"));
  CHECK(error_in(head + "section gradients\nsection free\nsection update\n") == "no error");
  CHECK(contains(error_in(head + "section update\nsection gradients\n"),
                 "section 'gradients' is after section 'update'"));
  CHECK(contains(error_in(head + "section step\nsection step\n"),
                 "section 'step' is after section 'step'"));
  Program wrong = program(head + "section step\n");
  wrong.inputs.at("x").micro_batch = 1;
  CHECK(contains(error_of([&] { graph::verify(wrong); }),
                 "input 'x' is of micro-batch 1, and its role is other"));
  wrong = program(head + "section step\noutput %0 = y\n");
  wrong.gradients["y"] = "v";
  CHECK(contains(error_of([&] { graph::verify(wrong); }), "'y' is the gradient of 'v'"));
  // A pass keeps what inputs are for.
  const Program before = program(head + "section step\n");
  Program after = before;
  after.inputs.at("x").role = Role::rows;
  CHECK(contains(error_of([&] { graph::verify_same(before, after); }),
                 "it has other inputs or outputs"));
}

TEST_CASE("shapes and types that differ from the operator's are refused") {
  const std::string head = "input %0: f32[4, 2] = x\nsection step\n";
  CHECK(contains(error_in(head + "  %1: f32[2, 4] = exp(%0)\noutput %1 = y\n"),
                 "%1 has the wrong shape or type (expected f32[4, 2], got f32[2, 4])"));
  CHECK(contains(error_in(head + "  %1: f64[4, 2] = exp(%0)\noutput %1 = y\n"),
                 "(expected f32[4, 2], got f64[4, 2])"));
  CHECK(contains(error_in(head + "  %1: f32[4, 4] = mm(%0, %0)\noutput %1 = y\n"),
                 "section 'step', instruction 1 (%1: f32[4, 4] = mm(%0, %0)): mm"));
}

TEST_CASE("aliases that go beyond their memory are refused") {
  const auto alias = [](const std::string& type, const std::string& how) {
    return error_in("input %0: f32[4, 2] = x\nsection step\n  %1: " + type +
                    " = memory.alias(%0; " + how + ")\n  %2: " + type +
                    " = neg(%1)\noutput %2 = y\n");
  };
  CHECK(alias("f32[4]", "strides=[2], offset=1") == "no error");
  CHECK(alias("f64[4]", "strides=[1], offset=0") == "no error");
  const std::string beyond = "it goes beyond its memory of 32 bytes";
  CHECK(contains(alias("f32[4]", "strides=[2], offset=2"), beyond));
  CHECK(contains(alias("f64[4]", "strides=[1], offset=1"), beyond));
  CHECK(contains(alias("f32[1]", "strides=[1], offset=-1"), beyond));
  CHECK(contains(alias("f32[5, 5]", "strides=[4611686018427387904, 4611686018427387904], offset=0"),
                 beyond));
  CHECK(contains(alias("f32[2]", "strides=[1], offset=9223372036854775807"), beyond));
}

TEST_CASE("memory is used only while it is there") {
  const std::string head =
      "input %0: f32[2] = x\nsection step\n  %1: f32[2] = exp(%0)\n  %2: f32[1] = "
      "memory.alias(%1; strides=[1], offset=0)\n";
  CHECK(contains(error_in(head + "  memory.release(%1)\n  %3: f32[1] = neg(%2)\n"),
                 "(%3: f32[1] = neg(%2)): %2 is used after its memory was released"));
  CHECK(contains(error_in(head + "  memory.release(%1)\n  fill_(%1; value=1)\n"),
                 "%1 is used after its memory was released"));
  CHECK(contains(error_in(head + "  memory.release(%1)\n  memory.release(%2)\n"),
                 "the memory of %2 is released twice"));
  CHECK(contains(error_in(head + "  memory.restore(%1)\n"),
                 "the memory of %1 is restored and was not released"));
}

TEST_CASE("what an issued collective uses is left alone until the wait") {
  const std::string head =
      "input %0: f32[2] = x\nsection step\n  %1: f32[2] = exp(%0)\n  %2: f32[4] = memory.empty()\n"
      "  all_gather_into(%2, %1; group=ranks 0 1, identity=1)\n";
  const auto with = [&](const std::string& body) { return error_in(head + body); };
  CHECK(with("  %3: f32[2] = neg(%1)\n  wait(%2)\n  fill_(%1; value=1)\n") == "no error");
  CHECK(contains(with("  %3: f32[4] = neg(%2)\n  wait(%2)\n"),
                 "it uses what a collective writes, before the wait; issued by section 'step', "
                 "instruction 3 (all_gather_into("));
  CHECK(contains(with("  fill_(%2; value=1)\n  wait(%2)\n"),
                 "it uses what a collective writes, before the wait"));
  CHECK(contains(with("  fill_(%1; value=1)\n  wait(%2)\n"),
                 "it writes what a collective reads, before the wait"));
  CHECK(contains(with("  memory.release(%1)\n  wait(%2)\n"),
                 "it writes what a collective reads, before the wait"));
  CHECK(contains(with("  wait(%2)\n  wait(%2)\n"), "no collective was issued for it"));
  CHECK(contains(with("  wait(%1)\n  wait(%2)\n"), "no collective was issued for it"));
  CHECK(contains(with(""), "identity=1)): it issues a collective, and nothing waits for it"));
}

TEST_CASE("programs that leave other values, or communicate in another order, differ") {
  const std::string head = "input %0: f32[2] = x\nsection step\n  %1: f32[2] = exp(%0)\n";
  const std::string by_2 = head + "  mul_scalar_(%1; value=2)\n  add_(%1, %0; alpha=1)\n";
  const std::string swapped = head + "  add_(%1, %0; alpha=1)\n  mul_scalar_(%1; value=2)\n";
  const std::string out = "output %1 = y\n";
  CHECK(contains(error_of_same(by_2 + out, swapped + out),
                 "output y has other values after section 'step'"));
  CHECK(error_of_same(by_2, swapped) == "no error");  // nothing reads it
  CHECK(contains(error_of_same(head + "  copy_(%0, %1)\n", head),
                 "input x has other values after section 'step'"));
  CHECK(contains(error_of_same(head + out, head), "it has other inputs or outputs"));
  CHECK(contains(error_of_same(head, head + "section update\n"), "it has other sections"));
  CHECK(contains(error_of_same("number lr\n" + head, head), "it depends on other variables"));
  const std::string sums =
      "  all_reduce_(%1; op=sum, group=ranks 0 1)\n  all_reduce_(%2; op=sum, group=ranks 0 1)\n";
  const std::string other =
      "  all_reduce_(%2; op=sum, group=ranks 0 1)\n  all_reduce_(%1; op=sum, group=ranks 0 1)\n";
  const std::string two = head + "  %2: f32[2] = neg(%0)\n";
  CHECK(
      contains(error_of_same(two + sums, two + other),
               "communication or a check of the host is missing, new or in another order: section "
               "'step', instruction 3 (all_reduce_(%2"));
  CHECK(
      contains(error_of_same(two + sums, two),
               "missing, new or in another order: section 'step', instruction 3 (all_reduce_(%1"));
  CHECK(contains(error_of_same(two, two + "  host.check(%1; 1, 2)\n"),
                 "in another order: section 'step', instruction 3 (host.check(%1; 1, 2))"));
}
