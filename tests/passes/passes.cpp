// Each pass on programs that are written by hand: the text that it leaves, and the same bits.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;

#include "program_text.hpp"

using namespace tessera;
using graph_test::body_of;
using graph_test::program;
using testing::error_of;

namespace {

/// What the executor leaves in outputs and inputs.
template <class Executes>
std::map<std::string, std::vector<double>> bits(const Program& program) {
  Executes executor(program);
  std::map<std::string, Tensor> inputs;
  for (const auto& [name, input] : program.inputs) {
    const int number = input.tensor.number;
    const ProgramTensor& x = program.tensors[input.tensor];
    std::vector<float> values;
    for (int i = 0; i < x.shape.product(); ++i) {
      values.push_back(0.25F * static_cast<float>((i * 7 + number * 3) % 11) - 1);
    }
    inputs[name] = from_values<float>(std::span<const float>(values), x.shape);
  }
  executor.begin(inputs);
  std::map<std::string, std::vector<double>> result;
  const StepVariables variables{.numbers = {{"lr", 0.5}, {"scale", 0.25}}};
  for (const Section& section : program.sections) {
    executor.run(section.kind, variables);
  }
  for (const auto& [name, number] : program.outputs) {
    result[name] = to_doubles(executor.output(name));
  }
  executor.end();
  for (const auto& [name, x] : inputs) {
    result["input " + name] = to_doubles(x);
  }
  return result;
}

/// The program after the passes; the bits are those before.
std::string after(const std::vector<std::string>& passes, const std::string& body) {
  Program changed = program(body);
  graph::run_passes(changed, passes);
  const auto expected = bits<Replay>(program(body));
  CHECK(bits<Replay>(changed) == expected);
  CHECK(bits<graph::PlannedExecutor>(changed) == expected);
  CHECK(Program::parse(changed.to_text()).to_text() == changed.to_text());
  return body_of(changed);
}

}  // namespace

TEST_CASE("dead: what nothing needs is removed, with the views and writes that lead to it") {
  CHECK(after({"dead"},
              "input %0: f32[2, 2] = x\n"
              "input %7: f32[4] = w\n"
              "section step\n"
              "  %1: f32[2, 2] = exp(%0)\n"
              "  %2: f32[2, 2] = neg(%1)\n"
              "  %3: f32[2] = memory.alias(%2; strides=[1], offset=0)\n"
              "  fill_(%3; value=4)\n"
              "  %4: f32[2, 2] = memory.empty()\n"
              "  memory.release(%4)\n"
              "  memory.restore(%4)\n"
              "  copy_(%4, %1)\n"
              "  %5: f32[2, 2] = transpose(%1; dim0=0, dim1=1)\n"
              "  mul_scalar_(%5; value=3)\n"
              "  %6: f32[2] = memory.alias(%7; strides=[1], offset=2)\n"
              "  fill_(%6; value=7)\n"
              "output %1 = y\n") ==
        "input %0: f32[2, 2] = x\n"
        "input %7: f32[4] = w\n"
        "section step\n"
        "  %1: f32[2, 2] = exp(%0)\n"
        "  %5: f32[2, 2] = transpose(%1; dim0=0, dim1=1)\n"
        "  mul_scalar_(%5; value=3)\n"
        "  %6: f32[2] = memory.alias(%7; strides=[1], offset=2)\n"
        "  fill_(%6; value=7)\n"
        "output %1 = y\n");
}

TEST_CASE("dead: what the host reads stays, and memory that is released and restored in use") {
  const std::string body =
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = memory.full(2)\n"
      "  host.check(%1; 2, 2)\n"
      "  %2: f32[2] = exp(%0)\n"
      "  memory.release(%2)\n"
      "  memory.restore(%2)\n"
      "  fill_(%2; value=1)\n"
      "  %3: f32[2] = add(%2, %0; alpha=1)\n"
      "output %3 = y\n";
  CHECK(after({"dead"}, body) == body);
}

TEST_CASE("common: equal calls become one while the first result is there") {
  CHECK(after({"common"},
              "input %0: f32[32] = x\n"
              "section step\n"
              "  %1: f32[32] = exp(%0)\n"
              "  %2: f32[32] = exp(%0)\n"
              "  %3: f32[32] = mul_scalar(%1; value=2)\n"
              "  %4: f32[32] = mul_scalar(%1; value=3)\n"
              "  %5: f32[32] = add(%1, %2; alpha=1)\n"
              "  %6: f32[32] = mul_scalar(%2; value=2)\n"
              "  %7: f32[32] = mul(%6, %3)\n"
              "  %8: f32[32] = exp(%0)\n"
              "output %5 = a\n"
              "output %4 = b\n"
              "output %7 = c\n"
              "output %8 = d\n") ==
        "input %0: f32[32] = x\n"
        "section step\n"
        "  %1: f32[32] = exp(%0)\n"
        "  %3: f32[32] = mul_scalar(%1; value=2)\n"
        "  %4: f32[32] = mul_scalar(%1; value=3)\n"
        "  %5: f32[32] = add(%1, %1; alpha=1)\n"
        "  %7: f32[32] = mul(%3, %3)\n"
        "  %8: f32[32] = exp(%0)\n"  // the first one is not kept for it
        "output %5 = a\n"
        "output %4 = b\n"
        "output %7 = c\n"
        "output %8 = d\n");
}

TEST_CASE("common: what is as small as a scale is kept for equal calls") {
  CHECK(after({"common"},
              "input %0: f32[16] = x\n"
              "section step\n"
              "  %1: f32[16] = exp(%0)\n"
              "  %2: f32[16] = neg(%1)\n"
              "  %3: f32[16] = exp(%0)\n"
              "  %4: f32[16] = add(%2, %3; alpha=1)\n"
              "output %4 = y\n") ==
        "input %0: f32[16] = x\n"
        "section step\n"
        "  %1: f32[16] = exp(%0)\n"
        "  %2: f32[16] = neg(%1)\n"
        "  %4: f32[16] = add(%2, %1; alpha=1)\n"
        "output %4 = y\n");
}

TEST_CASE("common: a result that replaces others is there as long as they are") {
  CHECK(after({"common"},
              "input %0: f32[32] = x\n"
              "section step\n"
              "  %1: f32[32] = exp(%0)\n"
              "  %2: f32[32] = exp(%0)\n"
              "  %3: f32[32] = neg(%1)\n"
              "  %4: f32[32] = exp(%0)\n"
              "  %5: f32[32] = add(%2, %4; alpha=1)\n"
              "output %3 = y\n"
              "output %5 = z\n") ==
        "input %0: f32[32] = x\n"
        "section step\n"
        "  %1: f32[32] = exp(%0)\n"
        "  %3: f32[32] = neg(%1)\n"
        "  %5: f32[32] = add(%1, %1; alpha=1)\n"
        "output %3 = y\n"
        "output %5 = z\n");
}

TEST_CASE("common: results beside needed ones stay for equal calls, if there is room") {
  const auto quantize = [](const std::string& codes, const std::string& factor,
                           const std::string& turned) {
    return "  " + codes + ": f8e4m3[16, 32], " + factor + ": f32[1, 1], " + turned +
           ": f8e4m3[32, 16] = quantize_f8(%0, -; dtype=f8e4m3, scales=whole, "
           "powers_of_two=false, order=both)\n";
  };
  // After %5, the codes with the dims of x are not needed any more, but the turned ones are.
  const std::string begin =
      "input %0: f32[16, 32] = x\n"
      "input %1: f32[4096] = large\n"
      "section step\n" +
      quantize("%2", "%3", "%4") + "  %5: f32[16, 32] = cast(%2; dtype=f32)\n";
  const std::string again = quantize("%6", "%7", "%8");
  const std::string end =
      "  %10: f32[16, 32] = add(%5, %9; alpha=1)\n"
      "output %4 = a\n";
  CHECK(after({"common"}, begin + again + "  %9: f32[16, 32] = cast(%6; dtype=f32)\n" + end +
                              "output %8 = b\noutput %10 = c\n") ==
        begin +
            "  %10: f32[16, 32] = add(%5, %5; alpha=1)\n"
            "output %4 = a\noutput %4 = b\noutput %10 = c\n");
  // Nothing else may be there where the peak of memory is.
  const std::string full = begin +
                           "  %11: f32[4096] = neg(%1)\n"
                           "  %12: f32[1] = sum(%11; dims=[0], keepdim=true)\n" +
                           again + "  %10: f32[16, 32] = cast(%6; dtype=f32)\n" +
                           "output %4 = a\noutput %8 = b\noutput %10 = c\noutput %12 = d\n";
  const std::string made = after({"common"}, full);
  CHECK(made.find(again) != std::string::npos);
}

TEST_CASE("common: calls that follow other variables stay") {
  const std::string body =
      "number lr\n"
      "number scale\n"
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = mul_scalar(%0; value=2) {value=$lr}\n"
      "  %2: f32[2] = mul_scalar(%0; value=2) {value=$scale}\n"
      "  %3: f32[2] = add(%1, %2; alpha=1)\n"
      "output %3 = y\n";
  CHECK(after({"common"}, body) == body);
}

TEST_CASE("common: writes between or after equal calls keep them apart") {
  const std::string body =
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = exp(%0)\n"
      "  add_(%0, %0; alpha=1)\n"
      "  %2: f32[2] = exp(%0)\n"
      "  %3: f32[2] = exp(%0)\n"
      "  fill_(%3; value=0)\n"
      "  %4: f32[2] = add(%2, %3; alpha=1)\n"
      "  %5: f32[2] = memory.empty()\n"
      "  %6: f32[2] = memory.empty()\n"
      "  fill_(%5; value=1)\n"
      "  fill_(%6; value=2)\n"
      "output %1 = a\n"
      "output %2 = b\n"
      "output %4 = c\n"
      "output %5 = d\n"
      "output %6 = e\n";
  CHECK(after({"common"}, body) == body);
}

TEST_CASE("views: chains become one view, equal views one tensor") {
  CHECK(after({"views", "dead"},
              "input %0: f32[4, 6] = x\n"
              "section step\n"
              "  %1: f32[4, 6] = exp(%0)\n"
              "  %2: f32[4, 6] = reshape(%1; shape=[4, 6])\n"
              "  %3: f32[6, 4] = transpose(%2; dim0=0, dim1=1)\n"
              "  %4: f32[4] = select(%3; dim=0, index=2)\n"
              "  %5: f32[2] = memory.alias(%4; strides=[12], offset=1)\n"
              "  %6: f32[2] = memory.alias(%1; strides=[12], offset=3)\n"
              "  %7: f32[2] = add(%5, %6; alpha=1)\n"
              "  %8: f32[6, 4] = contiguous(%3)\n"
              "output %7 = y\n"
              "output %8 = z\n") ==
        "input %0: f32[4, 6] = x\n"
        "section step\n"
        "  %1: f32[4, 6] = exp(%0)\n"
        "  %3: f32[6, 4] = transpose(%1; dim0=0, dim1=1)\n"
        "  %5: f32[2] = memory.alias(%1; strides=[12], offset=3)\n"
        "  %7: f32[2] = add(%5, %5; alpha=1)\n"
        "  %8: f32[6, 4] = contiguous(%3)\n"
        "output %7 = y\n"
        "output %8 = z\n");
}

TEST_CASE("views: of another type than the memory's first tensor") {
  CHECK(after({"views", "dead"},
              "input %0: f32[4] = x\n"
              "section step\n"
              "  %1: u8[24] = memory.empty()\n"
              "  %2: f32[5] = memory.alias(%1; strides=[1], offset=1)\n"
              "  %3: f32[4] = memory.alias(%2; strides=[1], offset=1)\n"
              "  copy_(%3, %0)\n"
              "  %4: f32[4] = neg(%3)\n"
              "output %4 = y\n") ==
        "input %0: f32[4] = x\n"
        "section step\n"
        "  %1: u8[24] = memory.empty()\n"
        "  %3: f32[4] = memory.alias(%1; strides=[1], offset=2)\n"
        "  copy_(%3, %0)\n"
        "  %4: f32[4] = neg(%3)\n"
        "output %4 = y\n");
}

TEST_CASE("copies: what is read in the same order is read where it is") {
  const std::string head = "input %0: f32[8, 16] = x\nsection step\n";
  const std::string cut = "  %1: f32[4, 16] = narrow(%0; dim=0, start=4, length=4)\n";
  const auto text = [&](const std::string& copy, const std::string& used) {
    return head + cut + copy + "  %3: f32[4, 16] = exp(%" + used + ")\n  %4: f32[] = sum(%" + used +
           "; dims=[0, 1], keepdim=false)\n  %5: f32[16, 4] = transpose(%3; dim0=0, dim1=1)\n"
           "  %6: f32[4, 4] = mm(%" +
           used + ", %5)\noutput %4 = s\noutput %6 = y\n";
  };
  CHECK(after({"copies"}, text("  %2: f32[4, 16] = clone(%1)\n", "2")) == text("", "1"));
  // Rows of 12 bytes begin where a tensor of its own does not.
  const auto product = [&](const std::string& copy, const std::string& used) {
    return "input %0: f32[8, 3] = x\nsection step\n"
           "  %1: f32[3, 3] = narrow(%0; dim=0, start=1, length=3)\n" +
           copy + "  %3: f32[3, 3] = mm(%" + used + ", %" + used + ")\noutput %3 = y\n";
  };
  const std::string kept = product("  %2: f32[3, 3] = clone(%1)\n", "2");
  CHECK(after({"copies"}, kept) == kept);
}

TEST_CASE("copies: lists have the original in a copy's place") {
  CHECK(after({"copies"},
              "input %0: f32[4, 6] = a\n"
              "input %1: f32[4, 6] = b\n"
              "section step\n"
              "  %2: f32[4, 6] = clone(%1)\n"
              "  %3: f32[4, 6] = clone(%0)\n"
              "  foreach_add_(%0, %3, %2, %2; alpha=0.5)\n"
              "  %4: f32[4, 6] = tanh(%3)\n"
              "output %4 = y\n") ==
        "input %0: f32[4, 6] = a\n"
        "input %1: f32[4, 6] = b\n"
        "section step\n"
        "  %3: f32[4, 6] = clone(%0)\n"
        "  foreach_add_(%0, %3, %1, %1; alpha=0.5)\n"
        "  %4: f32[4, 6] = tanh(%3)\n"
        "output %4 = y\n");
}

TEST_CASE("copies: what was copied twice is copied once, if a whole memory is") {
  CHECK(after({"copies"},
              "input %0: f32[8] = a\n"
              "section step\n"
              "  %1: f32[8] = exp(%0)\n"
              "  %2: f32[8] = clone(%1)\n"
              "  %3: f32[8] = clone(%2)\n"
              "  %4: f32[8] = tanh(%0)\n"
              "  copy_(%4, %3)\n"
              "output %4 = y\n") ==
        "input %0: f32[8] = a\n"
        "section step\n"
        "  %1: f32[8] = exp(%0)\n"
        "  %4: f32[8] = tanh(%0)\n"
        "  copy_(%4, %1)\n"
        "output %4 = y\n");
  const std::string part =
      "input %0: f32[8] = a\n"
      "section step\n"
      "  %1: f32[4] = narrow(%0; dim=0, start=4, length=4)\n"
      "  %2: f32[4] = clone(%1)\n"
      "  %3: f32[4] = memory.full(1)\n"
      "  copy_(%3, %2)\n"
      "output %3 = y\n";
  CHECK(after({"copies"}, part) == part);
}

TEST_CASE("copies: pointwise operators read what was expanded") {
  const auto text = [](const std::string& copy, const std::string& used) {
    return "input %0: f32[4, 6] = x\ninput %1: f32[1, 1] = g\nsection step\n"
           "  %2: f32[8, 6] = expand(%1; shape=[8, 6])\n"
           "  %3: f32[4, 6] = narrow(%2; dim=0, start=0, length=4)\n" +
           copy + "  %5: f32[4, 6] = mul(%" + used + ", %0)\noutput %5 = y\n";
  };
  CHECK(after({"copies"}, text("  %4: f32[4, 6] = contiguous(%3)\n", "4")) == text("", "3"));
}

TEST_CASE("copies: those that somebody needs stay") {
  const auto stays = [](const std::string& body) {
    const std::string text =
        "input %0: f32[4, 6] = x\ninput %1: f32[1, 6] = r\nsection step\n" + body;
    CHECK(after({"copies"}, text) == text);
  };
  const std::string copy = "  %2: f32[4, 6] = clone(%0)\n";
  stays(copy + "  exp_(%0)\n  %3: f32[4, 6] = neg(%2)\noutput %3 = y\n");  // the original changes
  stays(copy + "  exp_(%2)\n  %3: f32[4, 6] = neg(%2)\noutput %3 = y\n");  // the copy does
  stays(copy + "output %2 = y\n");                                         // it is the caller's
  stays(copy + "  %3: f32[24] = view(%2; shape=[24])\n  %4: f32[24] = neg(%3)\noutput %4 = y\n");
  // A sum follows the order of elements, and a small part keeps a large memory.
  stays(
      "  %2: f32[4, 6] = expand(%1; shape=[4, 6])\n  %3: f32[4, 6] = contiguous(%2)\n"
      "  %4: f32[] = sum(%3; dims=[0, 1], keepdim=false)\noutput %4 = y\n");
  stays(
      "  %2: f32[4, 6] = exp(%0)\n  %3: f32[1, 6] = narrow(%2; dim=0, start=0, length=1)\n"
      "  %4: f32[1, 6] = clone(%3)\n  %5: f32[4, 6] = neg(%0)\n  %6: f32[1, 6] = neg(%4)\n"
      "output %6 = y\noutput %5 = z\n");
  // Elements of a column are far from each other.
  stays(
      "  %2: f32[6, 4] = transpose(%0; dim0=0, dim1=1)\n  %3: f32[6, 4] = contiguous(%2)\n"
      "  %4: f32[6, 4] = neg(%3)\noutput %4 = y\n");
}

TEST_CASE("lifetimes: each time between restore and release is a memory of its own") {
  CHECK(after({"lifetimes"},
              "input %0: f32[2] = x\n"
              "section step\n"
              "  %1: f32[4] = memory.empty()\n"
              "  %2: f32[2] = memory.alias(%1; strides=[1], offset=2)\n"
              "  copy_(%2, %0)\n"
              "  %3: f32[2] = exp(%2)\n"
              "  memory.release(%2)\n"
              "  memory.restore(%1)\n"
              "  copy_(%2, %3)\n"
              "  %4: f32[2] = neg(%2)\n"
              "  %5: f32[1] = narrow(%2; dim=0, start=1, length=1)\n"
              "  %6: f32[1] = exp(%5)\n"
              "  memory.release(%1)\n"
              "output %4 = y\n"
              "output %6 = z\n") ==
        "input %0: f32[2] = x\n"
        "section step\n"
        "  %1: f32[4] = memory.empty()\n"
        "  %2: f32[2] = memory.alias(%1; strides=[1], offset=2)\n"
        "  copy_(%2, %0)\n"
        "  %3: f32[2] = exp(%2)\n"
        "  %7: f32[4] = memory.empty()\n"
        "  %8: f32[2] = memory.alias(%7; strides=[1], offset=2)\n"
        "  copy_(%8, %3)\n"
        "  %4: f32[2] = neg(%8)\n"
        "  %5: f32[1] = narrow(%8; dim=0, start=1, length=1)\n"
        "  %6: f32[1] = exp(%5)\n"
        "output %4 = y\n"
        "output %6 = z\n");
}

TEST_CASE("lifetimes: memory of inputs and outputs stays the caller's") {
  const std::string body =
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = exp(%0)\n"
      "  memory.release(%1)\n"
      "  memory.restore(%1)\n"
      "  copy_(%1, %0)\n"
      "output %1 = y\n";
  CHECK(after({"lifetimes"}, body) == body);
}

TEST_CASE("late_waits: a wait moves to the first use, and passes no other communication") {
  const auto moved = [](const std::string& body) {
    Program changed = program(body);
    graph::run_passes(changed, std::vector<std::string>{"late_waits"});
    return body_of(changed);
  };
  const std::string head =
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = exp(%0)\n"
      "  %2: f32[4] = memory.empty()\n"
      "  all_gather_into(%2, %1; group=ranks 0 1, identity=1)\n";
  CHECK(moved(head + "  wait(%2)\n"
                     "  %3: f32[2] = neg(%0)\n"
                     "  %4: f32[2] = mul(%3, %1)\n"
                     "  %5: f32[4] = exp(%2)\n"
                     "  %6: f32[2] = neg(%1)\n"
                     "output %5 = y\n") == head +
                                               "  %3: f32[2] = neg(%0)\n"
                                               "  %4: f32[2] = mul(%3, %1)\n"
                                               "  wait(%2)\n"
                                               "  %5: f32[4] = exp(%2)\n"
                                               "  %6: f32[2] = neg(%1)\n"
                                               "output %5 = y\n");
  const std::string of_input =
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %2: f32[4] = memory.empty()\n"
      "  all_gather_into(%2, %0; group=ranks 0 1, identity=1)\n";
  CHECK(moved(of_input + "  wait(%2)\n"
                         "  %3: f32[2] = memory.full(1)\n"
                         "  %4: f32[4] = exp(%2)\n") == of_input +
                                                            "  %3: f32[2] = memory.full(1)\n"
                                                            "  wait(%2)\n"
                                                            "  %4: f32[4] = exp(%2)\n");
  // nothing uses the result, which is not kept longer
  const std::string unused = of_input + "  wait(%2)\n  %3: f32[2] = memory.full(1)\n";
  CHECK(moved(unused) == unused);
  const std::string others[] = {
      // the collective's operand is not kept longer
      "  wait(%2)\n  %3: f32[2] = neg(%0)\noutput %2 = y\n",
      // it is written
      "  wait(%2)\n  fill_(%1; value=1)\n  %3: f32[2] = neg(%1)\noutput %2 = y\n",
      // it is sent
      "  wait(%2)\n  all_reduce_(%0; op=sum, group=ranks 0 1)\n  %3: f32[2] = neg(%1)\noutput %2 = "
      "y\n",
      "  wait(%2)\n  host.check(%0; 1, 2)\n  %3: f32[2] = neg(%1)\noutput %2 = y\n"};
  for (const std::string& body : others) {
    CHECK(moved(head + body) == head + body);
  }
}

TEST_CASE("early_issues: a collective moves up to its operands with what prepares it") {
  const auto moved = [](const std::string& body) {
    Program changed = program(body);
    graph::run_passes(changed, std::vector<std::string>{"lifetimes", "early_issues"});
    return body_of(changed);
  };
  const std::string head =
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = exp(%0)\n";
  const std::string gather =
      "  %4: f32[4] = memory.empty()\n"
      "  %5: f32[4] = memory.alias(%4; strides=[1], offset=0)\n"
      "  all_gather_into(%5, %1; group=ranks 0 1, identity=1)\n";
  const std::string rest =
      "  wait(%5)\n"
      "  %6: f32[8] = memory.full(1)\n"
      "  %7: f32[8] = neg(%6)\n"
      "  %8: f32[2] = add(%1, %2; alpha=1)\n";
  const std::string between = "  %2: f32[2] = neg(%1)\n  %3: f32[2] = exp(%2)\n";
  CHECK(moved(head + between + gather + rest) == head + gather + between + rest);
  // Where memory would not suffice, after a write of the operand, other communication or a check.
  const std::string others[] = {
      "  %2: f32[8] = memory.full(1)\n  %3: f32[8] = neg(%2)\n",
      "  %2: f32[2] = neg(%1)\n  fill_(%1; value=2)\n",
      "  %2: f32[2] = neg(%1)\n  all_reduce_(%0; op=sum, group=ranks 0 1)\n",
      "  %2: f32[2] = neg(%1)\n  host.check(%0; 1, 2)\n"};
  for (const std::string& body : others) {
    CHECK(moved(head + body + gather + "  wait(%5)\n") == head + body + gather + "  wait(%5)\n");
  }
}

TEST_CASE("passes have names, an order, reports and files") {
  Program one = program(
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = exp(%0)\n"
      "  %2: f32[2] = neg(%0)\n"
      "  %3: f32[2] = neg(%1)\n"
      "output %2 = y\n");
  const std::string unknown =
      error_of([&] { graph::run_passes(one, std::vector<std::string>{"ded"}); });
  CHECK(
      unknown.starts_with("changes: there is no change 'ded' (expected one of views, copies, "
                          "merge_collectives, common, "
                          "dead, lifetimes, keep_gathers, recompute, early_issues, late_waits"));
  CHECK(unknown.ends_with("did you mean 'dead'?"));
  CHECK(error_of([&] {
          graph::run_passes(one, std::vector<std::string>{"early_issues", "lifetimes"});
        }) ==
        "changes: 'early_issues' needs 'lifetimes' before it; add 'lifetimes' before "
        "'early_issues'");
  const testing::Folder folder;
  const std::vector<graph::PassReport> reports =
      graph::run_passes(one, std::vector<std::string>{"common", "dead"}, folder.path().string());
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].instructions_after == 3);
  CHECK(reports[1].name == "dead");
  CHECK(reports[1].instructions_before == 3);
  CHECK(reports[1].instructions_after == 1);
  CHECK(reports[1].peak_before == 24);
  CHECK(reports[1].peak_after == 8);
  const auto file = [&](const std::string& name) { return testing::read_file(folder / name); };
  CHECK(file("00-recorded.txt") == file("01-common.txt"));
  CHECK(file("01-common.diff").empty());
  CHECK(file("02-dead.txt") == one.to_text());
  CHECK(file("02-dead.diff") ==
        "@ line 5\n"
        "-   %1: f32[2] = exp(%0)\n"
        "@ line 7\n"
        "-   %3: f32[2] = neg(%1)\n");
}
