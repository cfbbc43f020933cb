// Compiled kernels: chains of elementwise operators as one loop, with the bits of their kernels.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.graph;

#include "element_program.hpp"
#include "program_text.hpp"
#include "random_step.hpp"

using namespace tessera;
using graph::PlannedExecutor;
using testing::Bits;

namespace {

/// Ordinary numbers, and those in which functions change their form.
Tensor values(const Dims& shape, DType dtype, unsigned seed) {
  Tensor x = empty(shape, DType::f32);
  set_seed(seed);
  ops::normal_(x, 0, 3, random_stream("data"));
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0F, -0.0F, inf, -inf, 1e-40F, -1e-40F, 60000.0F, 88.9F, -104.5F, 1.0F};
  for (std::int64_t i = 0; i < x.numel() && x.numel() > 8; i += 7) {
    x.data<float>()[i] = special[(i / 7 + seed) % std::size(special)];
  }
  return ops::cast(x, dtype);
}

/// Inputs of a program, of any values.
std::map<std::string, Tensor> inputs_of(const Program& program, unsigned seed) {
  std::map<std::string, Tensor> inputs;
  for (const auto& [name, input] : program.inputs) {
    const ProgramTensor& x = program.tensors[input.tensor];
    inputs[name] = values(x.shape, x.dtype, ++seed);
  }
  return inputs;
}

/// What a step leaves in outputs and inputs. NaN has many bits, and is one value.
Bits bits_after(Executor& executor, unsigned seed, const StepVariables& variables = {}) {
  const auto inputs = inputs_of(executor.program(), seed);
  executor.begin(inputs);
  for (const Section& section : executor.program().sections) {
    executor.run(section.kind, variables);
  }
  Bits bits;
  const auto add = [&](const std::string& name, const Tensor& stored) {
    const Tensor x = ops::cast(stored, DType::f64);
    testing::add_bits(bits, name, ops::where(ops::isnan(x), ops::zeros_like(x), x));
    testing::add_bits(bits, name + " nan", ops::isnan(x));
  };
  for (const auto& [name, number] : executor.program().outputs) {
    add("output " + name, executor.output(name));
  }
  executor.end();
  for (const auto& [name, x] : inputs) {
    add("input " + name, x);
  }
  return bits;
}

/// Executes steps with the bits of the interpreter; returns what was compiled.
graph::CompiledKernels same_bits(const Program& program, const StepVariables& variables = {}) {
  PlannedExecutor compiled(program, true);
  Replay replay(program);
  for (unsigned step = 0; step < 3; ++step) {
    INFO(program.to_text());
    CHECK(bits_after(compiled, step, variables) == bits_after(replay, step, variables));
  }
  REQUIRE(compiled.compiled().has_value());
  return *compiled.compiled();
}

}  // namespace

TEST_CASE("every operator with an element has its kernel's bits in compiled code") {
  int checked = 0;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const graph_test::AllElements all = graph_test::all_elements(dtype);
    checked += all.calls;
    const graph::CompiledKernels made = same_bits(all.program);
    CHECK(made.missing == "");
    CHECK(made.replaced == all.calls);
    CHECK(made.chains >= 1);
  }
  CHECK(checked > 4 * 30);
}

TEST_CASE("operands broadcast to a chain by columns, by rows and as one element") {
  const std::string head =
      "input %0: f32[6, 35] = x\n"
      "input %1: f32[35] = columns\n"
      "input %2: f32[6, 1] = rows\n"
      "input %3: f32[1, 1] = one\n"
      "section step\n";
  const graph::CompiledKernels made =
      same_bits(graph_test::program(head + "  %4: f32[6, 35] = mul(%0, %1)\n"
                                           "  %5: f32[6, 35] = add(%4, %2; alpha=0.5)\n"
                                           "  %6: f32[6, 35] = div(%3, %5)\n"
                                           "  %7: f32[210] = reshape(%6; shape=[210])\n"
                                           "  %8: f32[210] = exp(%7)\n"
                                           "output %8 = y\n"));
  CHECK((made.chains == 1 && made.replaced == 4));
  // Repeated along a dim in the middle; columns of another number: kernels of their own.
  const graph::CompiledKernels left =
      same_bits(graph_test::program("input %0: f32[4, 3, 5] = x\n"
                                    "input %1: f32[4, 1, 5] = middle\n"
                                    "input %2: f32[5] = few\n"
                                    "input %3: f32[15] = many\n"
                                    "section step\n"
                                    "  %4: f32[4, 3, 5] = mul(%0, %1)\n"
                                    "  %5: f32[4, 3, 5] = exp(%4)\n"
                                    "  %6: f32[4, 3, 5] = mul(%5, %2)\n"
                                    "  %7: f32[4, 15] = view(%6; shape=[4, 15])\n"
                                    "  %8: f32[4, 15] = mul(%7, %3)\n"
                                    "  %9: f32[4, 15] = neg(%8)\n"
                                    "output %9 = y\n"));
  CHECK((left.chains == 2 && left.replaced == 4));
}

TEST_CASE("values between the calls of a chain are rounded to their types") {
  for (const char* const type : {"bf16", "f16"}) {
    const std::string t = type;
    const graph::CompiledKernels made = same_bits(graph_test::program(
        "input %0: " + t + "[100] = x\ninput %1: " + t + "[100] = y\nsection step\n  %2: " + t +
        "[100] = mul(%0, %1)\n  %3: " + t + "[100] = add(%2, %1; alpha=1)\n  %4: " + t +
        "[100] = sigmoid(%3)\noutput %4 = z\n"));
    CHECK((made.chains == 1 && made.replaced == 3));
  }
  for (const char* const type : {"f8e4m3", "f8e5m2"}) {
    const std::string t = type;
    const graph::CompiledKernels made = same_bits(graph_test::program(
        "input %0: f32[100] = x\ninput %1: f32[100] = y\nsection step\n  %2: " + t +
        "[100] = cast(%0; dtype=" + t + ")\n  %3: f32[100] = cast(%2; dtype=f32)\n" +
        "  %4: f32[100] = mul(%3, %1)\n  %5: " + t + "[100] = cast(%4; dtype=" + t +
        ")\noutput %4 = z\noutput %5 = codes\n"));
    CHECK((made.chains == 1 && made.replaced == 4));
  }
}

TEST_CASE("what a chain writes is written, and other views of it are read afterwards") {
  const graph::CompiledKernels made =
      same_bits(graph_test::program("input %0: f32[4, 8] = x\n"
                                    "input %1: f32[4, 8] = y\n"
                                    "section step\n"
                                    "  mul_(%0, %1)\n"
                                    "  %2: f32[4, 8] = exp(%0)\n"
                                    "  add_(%0, %2; alpha=-1)\n"
                                    "  %3: f32[1, 8] = narrow(%0; dim=0, start=1, length=1)\n"
                                    "  %4: f32[4, 8] = add(%1, %3; alpha=1)\n"
                                    "  mul_scalar_(%3; value=3)\n"
                                    "  %5: f32[4, 8] = mul(%0, %4)\n"
                                    "  %6: f32[8, 4] = transpose(%0; dim0=0, dim1=1)\n"
                                    "  neg_(%0)\n"
                                    "  %7: f32[8, 4] = exp(%6)\n"
                                    "output %5 = a\n"
                                    "output %7 = b\n"));
  CHECK(made.chains == 2);
  // A row of what is written is an operand of all rows.
  same_bits(
      graph_test::program("input %0: f32[4, 8] = x\n"
                          "input %1: f32[4, 8] = y\n"
                          "section step\n"
                          "  %2: f32[1, 8] = narrow(%0; dim=0, start=1, length=1)\n"
                          "  %3: f32[4, 8] = mul(%1, %2)\n"
                          "  neg_(%0)\n"
                          "output %3 = z\n"));
  // What reads a value ends its chain.
  const graph::CompiledKernels none =
      same_bits(graph_test::program("input %0: f32[4, 8] = x\n"
                                    "section step\n"
                                    "  %1: f32[4, 8] = tanh(%0)\n"
                                    "  %2: f32[8] = sum(%1; dims=[0], keepdim=false)\n"
                                    "  %3: f32[4, 8] = mul(%1, %0)\n"
                                    "output %2 = a\n"
                                    "output %3 = b\n"));
  CHECK(none.chains == 0);

  PlannedExecutor compiled(graph_test::program("input %0: f32[8] = x\nsection step\n  neg_(%0)\n"
                                               "  %1: f32[8] = exp(%0)\noutput %1 = y\n"),
                           true);
  const Tensor x = ops::zeros_like(values({8}, DType::f32, 1));
  const auto version = x.storage().version();
  compiled.begin({{"x", x}});
  compiled.run(SectionKind::step, {});
  compiled.end();
  CHECK(x.storage().version() == version + 1);
}

TEST_CASE("a chain of few elements waits for calls between its own, and takes the step's numbers") {
  const Program program = graph_test::program(
      "number scale\n"
      "input %0: f32[64, 64] = x\n"
      "input %1: f32[64, 64] = y\n"
      "input %2: f32[] = one\n"
      "input %3: f32[] = other\n"
      "section step\n"
      "  %4: f32[] = add(%2, %3; alpha=0.5)\n"
      "  %5: f32[64, 64] = mm(%0, %1)\n"
      "  %6: f32[] = mul_scalar(%4; value=2) {value=$scale}\n"
      "  %7: f32[64, 64] = mul(%5, %6)\n"
      "output %6 = sum\n"
      "output %7 = y\n");
  const graph::CompiledKernels made = same_bits(program, {.numbers = {{"scale", 0.375}}});
  CHECK((made.chains == 1 && made.replaced == 2));
  PlannedExecutor compiled(program, true);
  CHECK(bits_after(compiled, 1, {.numbers = {{"scale", 0.5}}}) !=
        bits_after(compiled, 1, {.numbers = {{"scale", 0.25}}}));
}

TEST_CASE("values within a chain need no memory, and a result may be where an operand was") {
  const Program program = graph_test::program(
      "input %0: f32[1024] = x\n"
      "section step\n"
      "  %1: f32[1024] = cumsum(%0; dim=0)\n"
      "  %2: f32[1024] = exp(%1)\n"
      "  %3: f32[1024] = mul(%2, %1)\n"
      "  %4: f32[1024] = sub(%3, %2; alpha=1)\n"
      "  %5: f32[1024] = cumsum(%4; dim=0)\n"
      "output %5 = y\n");
  PlannedExecutor compiled(program, true);
  PlannedExecutor planned(program);
  CHECK(bits_after(compiled, 1) == bits_after(planned, 1));
  CHECK(compiled.memory()->block_bytes == 8192);  // of the chain one array, and the result
  CHECK(planned.memory()->block_bytes == 12288);
  CHECK(graph::planned_bytes(program, true) == 3 * 4096);
  CHECK(graph::planned_bytes(program) == 4 * 4096);

  const Program short_one = graph_test::program(
      "input %0: f32[1024] = x\n"
      "section step\n"
      "  %1: f32[1024] = cumsum(%0; dim=0)\n"
      "  %2: f32[1024] = exp(%1)\n"
      "  %3: f32[1024] = mul(%2, %1)\n"
      "output %3 = y\n");
  CHECK(graph::planned_bytes(short_one, true) == 2 * 4096);
  CHECK(graph::planned_bytes(short_one) == 3 * 4096);
}

namespace {

/// Chains with norms and softmax, each compiled, have the bits of their kernels.
void check_row_chains(DType dtype, const std::string& columns) {
  INFO(name_of(dtype) << ", rows of " << columns);
  const std::string t(name_of(dtype));
  const std::string s = dtype == DType::f64 ? "f64" : "f32";
  // More rows than a block of sums has, and not a multiple of them.
  const std::string x = t + "[10, 13, " + columns + "]";
  const std::string w = t + "[" + columns + "]";
  const std::string rows = s + "[10, 13]";
  const std::string head = "input %0: " + x + " = x\ninput %1: " + x + " = y\ninput %2: " + w +
                           " = weight\ninput %3: " + w + " = bias\ninput %4: " + rows +
                           " = rstd\ninput %5: " + rows + " = mean\nsection step\n";
  const auto chain = [&](const std::string& body, int calls) {
    const graph::CompiledKernels made = same_bits(graph_test::program(head + body));
    CHECK((made.chains == 1 && made.replaced == calls));
  };
  chain("  %6: " + x + " = add(%0, %1; alpha=1)\n  %7: " + x + ", %8: " + rows +
            " = rms_norm(%6, %2; eps=1e-05)\n  %9: " + x +
            " = exp(%7)\noutput %6 = sum\noutput %8 = rstd\noutput %9 = z\n",
        3);
  chain("  %6: " + x + ", %7: " + rows + " = rms_norm(%0, -; eps=1e-05)\n  %8: " + x +
            " = mul(%6, %1)\noutput %8 = z\n",
        2);
  // Of finite values, so that sums over rows are.
  const std::string finite =
      "  %6: " + rows + " = tanh(%4)\n  %7: " + x + " = tanh(%0)\n  %8: " + x + " = tanh(%1)\n";
  chain(finite + "  %9: " + x + ", %10: " + w + " = rms_norm_backward(%7, %8, %2, %6)\n" +
            "  add_(%1, %9; alpha=1)\noutput %10 = dw\n",
        4);
  chain("  %6: " + x + " = neg(%0)\n  %7: " + x + ", %8: " + rows + ", %9: " + rows +
            " = layer_norm(%6, %2, %3; eps=1e-05)\n  %10: " + x + ", %11: " + rows +
            ", %12: " + rows + " = layer_norm(%7, -, -; eps=1e-05)\n" +
            "output %8 = mean\noutput %9 = rstd\noutput %10 = z\noutput %12 = again\n",
        3);
  chain(finite + "  %9: " + x + ", %10: " + w + ", %11: " + w +
            " = layer_norm_backward(%7, %8, %2, %6, %6)\n  add_(%0, %9; alpha=1)\n" +
            "output %10 = dw\noutput %11 = db\n",
        4);
  chain("  %6: " + x + " = mul(%0, %1)\n  %7: " + x + " = softmax(%6; dim=-1)\n  %8: " + x +
            " = softmax_backward(%1, %7; dim=2)\n  %9: " + x + " = mul(%8, %7)\noutput %9 = z\n",
        4);
  chain("  %6: " + x + " = log_softmax(%0; dim=2, loss_parallel=false)\n  %7: " + x +
            " = exp(%6)\n  %8: " + x +
            " = log_softmax_backward(%7, %6; dim=2, loss_parallel=false)\noutput %8 = z\n",
        3);
}

}  // namespace

TEST_CASE("norms and softmax are members of chains, with the bits of their kernels") {
  for (const char* columns : {"37", "128", "2"}) {
    check_row_chains(DType::f32, columns);
  }
  check_row_chains(DType::f64, "37");
  check_row_chains(DType::bf16, "37");
  check_row_chains(DType::f16, "128");
}

TEST_CASE("norms and softmax are members of chains of every type and size", "[.long]") {
  for (const DType dtype : {DType::f64, DType::bf16, DType::f16}) {
    for (const char* columns : {"37", "128", "2"}) {
      check_row_chains(dtype, columns);
    }
  }
}

TEST_CASE("rows of a chain keep what later calls read, and are shared by threads") {
  // %0 ends here, but its row is read after the row of %4 is written: %4 needs a place of its own.
  const Program program = graph_test::program(
      "input %0: f32[1001, 24] = x\ninput %1: f32[24] = weight\nsection step\n"
      "  %11: f32[1001, 24] = tanh(%0)\n"
      "  %2: f32[1001, 24] = softmax(%11; dim=0)\n"
      "  %3: f32[1001, 24] = softmax(%2; dim=1)\n"
      "  %4: f32[1001, 24] = mul(%3, %1)\n"
      "  %5: f32[1001, 24], %6: f32[1001] = rms_norm(%2, %1; eps=0.001)\n"
      "  %7: f32[1001, 24] = mul(%5, %2)\n"
      "  %8: f32[1001, 24], %9: f32[24] = rms_norm_backward(%7, %2, %1, %6)\n"
      "  %10: f32[1001, 24] = cumsum(%8; dim=0)\n"
      "output %4 = a\noutput %9 = dw\noutput %10 = b\n");
  for (const int threads : {1, 3}) {
    ops::set_threads(threads);
    const graph::CompiledKernels made = same_bits(program);
    CHECK((made.chains == 1 && made.replaced == 5));
  }
  // A block of sums belongs to one thread; there are many, in which others are at work.
  CHECK(same_bits(graph_test::program(
                      "input %0: f32[60001, 24] = x\ninput %1: f32[60001] = rstd\nsection step\n"
                      "  %2: f32[60001] = tanh(%1)\n  %3: f32[60001, 24] = tanh(%0)\n"
                      "  %4: f32[60001, 24], %5: f32[24] = rms_norm_backward(%3, %3, -, %2)\n"
                      "  %6: f32[60001, 24] = neg(%4)\noutput %5 = dw\noutput %6 = y\n"))
            .replaced == 3);
  ops::set_threads(1);
  // A square: what is one for each row is not one for each column.
  same_bits(
      graph_test::program("input %0: f32[8, 8] = x\ninput %1: f32[8] = weight\nsection step\n"
                          "  %2: f32[8, 8], %3: f32[8] = rms_norm(%0, %1; eps=0.001)\n"
                          "  %4: f32[8, 8], %5: f32[8] = rms_norm_backward(%2, %0, %3, %1)\n"
                          "  %6: f32[8, 8] = mul(%4, %3)\noutput %6 = y\noutput %5 = z\n"));
  // Rows of one element, long rows and other dims are kernels of their own.
  for (const std::string shape : {"40, 1", "2, 5000"}) {
    const graph::CompiledKernels none = same_bits(graph_test::program(
        "input %0: f32[" + shape + "] = x\nsection step\n  %1: f32[" + shape +
        "] = softmax(%0; dim=1)\n  %2: f32[" + shape + "] = neg(%1)\noutput %2 = y\n"));
    CHECK(none.chains == 0);
  }
}

TEST_CASE("an operator of one's own may be of rows") {
  static const Op& op = register_op(
      {.schema = "minus_row_maximum(x)",
       .infer = [](const Call& call,
                   ResultShapes& out) { out.push_back({call.in[0].shape(), call.in[0].dtype()}); },
       .cpu =
           [](const Call& call, std::span<Tensor> out) {
             const std::int64_t n = call.in[0].shape().back();
             for (std::int64_t at = 0; at < call.in[0].numel(); at += n) {
               const float* const x = call.in[0].data<float>() + at;
               const float top = *std::max_element(x, x + n);
               std::transform(x, x + n, out[0].data<float>() + at,
                              [&](float y) { return y - top; });
             }
           },
       .element =
           [](const Call&) {
             return Element{.function = "MinusRowMaximum",
                            .header = R"(
struct MinusRowMaximum {
  template <class T>
  static void row(std::int64_t n, const T* x, T* y) {
    const auto top = tessera::kernels::row_maximum(n, x);
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - top;
  }
};)",
                            .of_rows = true};
           }});
  const Program program = graph_test::program(
      "input %0: f32[9, 30] = x\nsection step\n  %1: f32[9, 30] = tanh(%0)\n  %2: f32[9, 30] = " +
      op.name + "(%1)\n  %3: f32[9, 30] = exp(%2)\noutput %3 = y\n");
  const graph::CompiledKernels made = same_bits(program);
  CHECK((made.chains == 1 && made.replaced == 3));
}

TEST_CASE("booleans are values of chains") {
  for (const char* const type : {"f32", "bf16"}) {
    const std::string x = std::string(type) + "[7, 19]";
    std::string body = "input %0: " + x + " = x\ninput %1: " + x + " = y\nsection step\n";
    std::string outputs;
    int number = 2;
    const auto add = [&](const std::string& made, const std::string& call) {
      body += "  %" + std::to_string(number) + ": " + made + " = " + call + "\n";
      outputs += "output %" + std::to_string(number) + " = z" + std::to_string(number) + "\n";
      return "%" + std::to_string(number++);
    };
    for (const char* const op :
         {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"}) {
      const std::string mask = add("bool[7, 19]", std::string(op) + "(%0, %1)");
      const std::string chosen = add(x, "where(" + mask + ", %0, %1)");
      const std::string filled = add(x, "masked_fill(" + chosen + ", " + mask + "; value=0.3)");
      add(x, "masked_fill_backward(" + filled + ", " + mask + ")");
    }
    for (const char* const op : {"logical_not", "isnan", "isinf", "isfinite"}) {
      add("bool[7, 19]", std::string(op) + "(%0)");
    }
    if (type == std::string("f32")) {
      for (const char* const op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
        add("bool[7, 19]", std::string(op) + "_scalar(%0; value=0)");
      }
    }
    const graph::CompiledKernels made = same_bits(graph_test::program(body + outputs));
    CHECK((made.chains == 1 && made.replaced == number - 2));
  }
  // Masks that are given, of one for each column.
  const graph::CompiledKernels given = same_bits(graph_test::program(
      "input %0: f32[5, 33] = x\ninput %1: bool[33] = mask\nsection step\n"
      "  %2: f32[5, 33] = where(%1, %0, %0)\n  %3: f32[5, 33] = masked_fill(%2, %1; value=-1)\n"
      "output %3 = y\n"));
  CHECK(given.chains == 1);
}

TEST_CASE("threads share the rows or the columns of a chain") {
  const auto text = [](const std::string& shape, const std::string& other) {
    return "input %0: f32[" + shape + "] = x\ninput %1: f32[" + other +
           "] = y\nsection step\n  %2: f32[" + shape + "] = mul(%0, %1)\n  %3: f32[" + shape +
           "] = tanh(%2)\noutput %3 = z\n";
  };
  ops::set_threads(3);
  CHECK(same_bits(graph_test::program(text("100003", "100003"))).chains == 1);
  CHECK(same_bits(graph_test::program(text("1001, 101", "101"))).chains == 1);
  CHECK(same_bits(graph_test::program(text("3, 40001", "3, 1"))).chains == 1);
  ops::set_threads(1);
}

TEST_CASE("an element that is no C++ is refused with the operator's remedy") {
  static const Op& op = register_op(
      {.schema = "wrong_element(x)",
       .infer = [](const Call& call,
                   ResultShapes& out) { out.push_back({call.in[0].shape(), call.in[0].dtype()}); },
       .cpu = [](const Call&, std::span<Tensor>) {},
       .element =
           [](const Call&) {
             return Element{.function = "WrongElement",
                            .header =
                                "struct WrongElement { template <class T> static T value(T a) "
                                "{ return a +; } };"};
           }});
  const Program program =
      graph_test::program("input %0: f32[8] = x\nsection step\n  %1: f32[8] = " + op.name +
                          "(%0)\n  %2: f32[8] = neg(%1)\noutput %2 = y\n");
  const std::string error = testing::error_of([&] { PlannedExecutor(program, true); });
  CHECK(error.find("compiled kernels: ") == 0);
  CHECK(error.find("refuses the generated code: expected expression") != std::string::npos);
  CHECK(error.find("correct Op::element of the operator") != std::string::npos);
  CHECK_NOTHROW(PlannedExecutor(program));
}
