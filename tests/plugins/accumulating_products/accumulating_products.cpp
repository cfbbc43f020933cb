// The shipped transformation AccumulatingProducts: what it leaves of programs that are written by
// hand, and that the values stay.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.graph;

#include "program_text.hpp"

using namespace tessera;
using graph_test::body_of;
using graph_test::program;

namespace {

std::string after(const std::string& body) {
  graph::AddedState added;
  Program changed = program(body);
  graph::run_change(graph::find_change("AccumulatingProducts"), changed, added);
  return body_of(changed);
}

/// Gradients dy [rows, 2] and inputs x [rows, 3] of two micro-batches, and a weight [2, 3].
const std::string inputs =
    "input %0: f32[4, 2] = dy\n"
    "input %1: f32[4, 3] = x\n"
    "input %2: f32[2, 3] = weight\n"
    "input %3: f32[4, 3] = dx\n";

/// A sum over micro-batches, one of two gradients of an input, and what comes between.
const std::string step = inputs +
                         "section step\n"
                         "  %4: f32[2, 3] gradient = linear_grad_weight(%0, %1)\n"
                         "  %5: f32[2, 3] activation = linear_grad_weight(%0, %1) @ backward in a\n"
                         "  %6: f32[4, 3] activation = linear_grad_input(%0, %2) @ backward in a\n"
                         "  add_(%4, %5; alpha=1) @ backward\n"
                         "  add_(%3, %6; alpha=1) @ backward\n"
                         "output %4 = dweight\n";

Tensor numbers(const Dims& shape, int first) {
  const Tensor x = empty(shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>((i * 5 + first) % 7 - 3);
  }
  return x;
}

std::map<std::string, std::vector<double>> results(const std::string& body) {
  const std::unique_ptr<Executor> executor =
      graph::make_executor(program(body), {.executor = "planned"}, nullptr);
  std::map<std::string, Tensor> given{{"dy", numbers({4, 2}, 1)},
                                      {"x", numbers({4, 3}, 2)},
                                      {"weight", numbers({2, 3}, 3)},
                                      {"dx", numbers({4, 3}, 4)}};
  executor->begin(given);
  executor->run(SectionKind::step, {});
  const std::vector<double> dweight = to_doubles(executor->output("dweight"));
  executor->end();
  return {{"dweight", dweight}, {"dx", to_doubles(given.at("dx"))}};
}

}  // namespace

TEST_CASE("products add to the tensor that they were added to") {
  const std::string changed = after(step);
  CHECK(changed == inputs +
                       "section step\n"
                       "  %4: f32[2, 3] gradient = linear_grad_weight(%0, %1)\n"
                       "  linear_grad_weight_(%4, %0, %1) @ backward in a\n"
                       "  linear_grad_input_(%3, %0, %2) @ backward in a\n"
                       "output %4 = dweight\n");
  CHECK(results(changed) == results(step));  // of whole numbers, sums are exact
}

TEST_CASE("a cast between a product of 16 bits and the sum is not needed") {
  const std::string head =
      "input %0: bf16[4, 2] = dy\n"
      "input %1: bf16[4, 3] = x\n"
      "input %2: f32[2, 3] = dweight\n"
      "section step\n";
  CHECK(after(head + "  %3: bf16[2, 3] = linear_grad_weight(%0, %1)\n"
                     "  %4: f32[2, 3] = cast(%3; dtype=f32)\n"
                     "  add_(%2, %4; alpha=1)\n") == head + "  linear_grad_weight_(%2, %0, %1)\n");
}

TEST_CASE("products of 8-bit codes add to the tensor that they were added to") {
  const std::string head =
      "input %0: f8e5m2[4, 2] = dy\n"
      "input %1: f32[] = dy_factor\n"
      "input %2: f8e4m3[4, 3] = x\n"
      "input %3: f32[] = x_factor\n"
      "input %4: bf16[2, 3] = dweight\n"
      "input %5: f8e4m3[2, 3] = weight\n"
      "input %6: bf16[4, 3] = dx\n"
      "section step\n";
  CHECK(after(head + "  %7: bf16[2, 3] = scaled_linear_grad_weight(%0, %1, %2, %3; dtype=bf16)\n"
                     "  add_(%4, %7; alpha=1)\n"
                     "  %8: bf16[4, 3] = scaled_linear_grad_input(%0, %1, %5, %3; dtype=bf16)\n"
                     "  add_(%6, %8; alpha=1)\n") ==
        head +
            "  scaled_linear_grad_weight_(%4, %0, %1, %2, %3)\n"
            "  scaled_linear_grad_input_(%6, %0, %1, %5, %3)\n");
}

TEST_CASE("gradients of embeddings add to the tensor that they were added to") {
  const std::string head =
      "input %0: bf16[2, 3, 4] = dy\n"
      "input %1: i64[2, 3] = indices\n"
      "input %2: bf16[10, 4] = weight\n"
      "input %3: bf16[10, 4] = dweight\n"
      "section step\n";
  CHECK(after(head + "  %4: bf16[10, 4] = embedding_backward(%0, %1, %2; whole=none)\n"
                     "  add_(%3, %4; alpha=1)\n") ==
        head + "  embedding_backward_(%3, %0, %1; whole=none)\n");
}

TEST_CASE("products stay where their sum would be another one") {
  const auto stays = [](const std::string& body) {
    const std::string text = inputs + body;
    INFO(text);
    CHECK(after(text) == text);
  };
  const std::string product = "  %4: f32[2, 3] = linear_grad_weight(%0, %1)\n";
  // It is used twice, or the caller sees it.
  stays("section step\n" + product + "  add_(%2, %4; alpha=1)\n  %5: f32[2, 3] = neg(%4)\n" +
        "output %5 = y\n");
  stays("section step\n" + product + "  add_(%2, %4; alpha=1)\noutput %4 = y\n");
  // A multiple of it is added.
  stays("section step\n" + product + "  add_(%2, %4; alpha=2)\n");
  // It is added to several rows.
  stays(
      "input %5: f32[1, 3] = a\ninput %6: f32[3, 2] = b\ninput %7: f32[4, 2] = c\n"
      "section step\n  %4: f32[1, 2] = linear_grad_input(%5, %6)\n  add_(%7, %4; alpha=1)\n");
  // An operand changes before the sum.
  stays("section step\n" + product + "  neg_(%1)\n  add_(%2, %4; alpha=1)\n");
  // The sum is an operand.
  stays(
      "input %5: f32[3, 3] = square\n"
      "section step\n  %4: f32[4, 3] = linear_grad_input(%3, %5)\n  add_(%3, %4; alpha=1)\n");
  // The host may read the product between two sections.
  stays("section gradients\n" + product + "section update\n  add_(%2, %4; alpha=1)\n");
}
