// The texts of errors, and what is refused.
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

using namespace tessera;

TEST_CASE("errors begin with the operator's name") {
  const Tensor x = zeros({2, 3});
  const Tensor y = zeros({4});
  // Arguments that only a call by the operator's name can have.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  struct SliceBackwardArgs {
    std::int64_t dim;
    std::int64_t extent;
    std::int64_t start;
    std::int64_t step;
  };
  struct PadArgs {
    Dims padding;
    ops::PadMode mode;
    Dynamic<double> value;
  };
  struct PadBackwardArgs {
    Dims padding;
    ops::PadMode mode;
  };
  const std::map<std::string, std::function<void()>> mistakes = {
      {"add", [&] { ops::add(x, y); }},
      {"mul", [&] { ops::mul(x, y); }},
      {"eq", [&] { ops::eq(x, y); }},
      {"where", [&] { ops::where(x, x, x); }},
      {"masked_fill", [&] { ops::masked_fill(x, y, 0); }},
      {"add_", [&] { ops::add_(y, x); }},
      {"copy_", [&] { ops::copy_(y, x); }},
      {"sum", [&] { ops::sum(x, {2}); }},
      {"mean", [&] { ops::mean(ops::cast(x, DType::i64)); }},
      {"amax", [&] { ops::amax(zeros({0, 2}), {0}); }},
      {"cumsum", [&] { ops::cumsum(x, 2); }},
      {"view", [&] { ops::view(x, {4, -1}); }},
      {"permute", [&] { ops::permute(x, {0, 0}); }},
      {"expand", [&] { ops::expand(x, {4, 3}); }},
      {"narrow", [&] { ops::narrow(x, 1, 2, 2); }},
      {"select", [&] { ops::select(x, 0, 2); }},
      {"slice", [&] { ops::slice(x, 0, 0, 1, 0); }},
      {"cat", [&] { ops::cat(std::vector{x, y}); }},
      {"stack", [&] { ops::stack(std::vector{x, y}); }},
      {"split", [&] { ops::split(x, 0); }},
      {"slice_backward",
       [&] {
         call_one(find_op("slice_backward"), {x},
                  SliceBackwardArgs{.dim = 0, .extent = most, .start = 1, .step = most});
       }},
      {"pad",
       [&] {
         call_one(find_op("pad"), {x},
                  PadArgs{.padding = {1, 0}, .mode = static_cast<ops::PadMode>(7), .value = 0});
       }},
      {"pad_backward",
       [&] {
         call_one(find_op("pad_backward"), {x},
                  PadBackwardArgs{.padding = {most, most}, .mode = ops::PadMode::reflect});
       }},
  };
  for (const auto& [name, mistake] : mistakes) {
    INFO(name);
    try {
      mistake();
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.fields().thing == name);
      CHECK(std::string(error.what()).starts_with(name + ": "));
    }
  }
}

TEST_CASE("a gradient that others share is not added to in place") {
  const Tensor x = from_values<double>({1, 2, 3}, {3}).set_requires_grad();
  // The sum's gradient repeats one number, and reaches x by two views of the same memory.
  const Tensor y = ops::add(ops::view(x, {3}), ops::add(ops::view(x, {3}), x));
  backward(ops::sum(y));
  CHECK(to_doubles(x.grad()) == std::vector<double>{3, 3, 3});
}

TEST_CASE("a checkpoint refuses to be differentiated again") {
  Tensor x = from_values<double>({1, 2, 3}, {3});
  x.set_requires_grad();
  const CheckpointedFunction cube = [](std::span<const Tensor> in) {
    return Tensors{ops::sum(ops::mul(in[0], ops::square(in[0])))};
  };
  const Tensor y = checkpoint(cube, std::span(&x, 1))[0];
  std::string text;
  try {
    backward(y, {.create_graph = true});
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(text.starts_with("checkpoint: "));
  CHECK_FALSE(x.grad());
}
