// What a captured step does besides calls of operators on local tensors: values that are
// distributed, made or moved within it are the same in replays, and memory that the host addresses
// is refused.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.tensor;
import tessera.train;

#include "support.hpp"

using namespace tessera;
using parallel_test::check;
using parallel_test::contains;
using parallel_test::error_of;
using parallel_test::on_ranks;

namespace {

using Computed = std::function<Tensor(const Tensor& x)>;

/// Calls with other values, captured and as they are.
void same_bits(const std::string& name, const Computed& computed) {
  CompiledStep step =
      compile([&](StepCall& call) -> Tensors { return {computed(call.inputs()[0])}; });
  for (int call = 0; call < 4; ++call) {
    const Tensor x = full({4, 3}, 1 + call + 10 * current_rank());
    const std::vector<double> captured = to_doubles(step({x})[0]);
    check(captured == to_doubles(computed(x)), name + ": call " + std::to_string(call));
  }
  check(step.counts().replayed == 2, name + ": " + to_string(step.counts()));
}

}  // namespace

TEST_CASE("tensors that are distributed within a captured step are those of its call") {
  for (const int ranks : {1, 2}) {
    INFO(ranks);
    REQUIRE_NOTHROW(on_ranks(ranks, [&](int) {
      const DeviceMesh mesh = DeviceMesh::make({"d"}, {ranks});
      const Layout replicated = Layout::replicated(mesh);
      const Layout rows = Layout::make(mesh, {Shard(0)});
      const Layout columns = Layout::make(mesh, {Shard(1)});
      const auto twice = [](const Tensor& x) { return ops::mul_scalar(x, 2); };
      const std::vector<std::pair<std::string, Computed>> cases = {
          {"replicated", [&](const Tensor& x) { return twice(distribute(x, replicated).local()); }},
          {"as it is", [&](const Tensor& x) { return distribute(x, replicated).local(); }},
          {"rows", [&](const Tensor& x) { return twice(distribute(x, rows).local()); }},
          {"columns", [&](const Tensor& x) { return twice(distribute(x, columns).local()); }},
          {"whole", [&](const Tensor& x) { return full_tensor(distribute(x, rows)); }},
          {"a term",
           [&](const Tensor& x) {
             return full_tensor(distribute(x, Layout::make(mesh, {Partial()})));
           }},
          {"from one rank",
           [&](const Tensor& x) { return twice(distribute_from(x, replicated, 0).local()); }},
          {"parts from one rank",
           [&](const Tensor& x) { return full_tensor(distribute_from(x, columns, ranks - 1)); }},
          {"numbers in order", [&](const Tensor& x) {
             return ops::mul(ops::select(x, 0, 0), full_tensor(distributed_arange(
                                                       1, 4, 1, Layout::make(mesh, {Shard(0)}))));
           }}};
      for (const auto& [name, computed] : cases) {
        same_bits(name, computed);
      }
    }));
  }
}

TEST_CASE("a step that receives without operands is captured before its first call") {
  REQUIRE_NOTHROW(on_ranks(2, [&](int) {
    const Layout replicated = Layout::replicated(DeviceMesh::make({"d"}, {2}));
    CompiledStep step = compile([&](Device) -> StepBody {
      return [&](StepCall& call) -> Tensors {
        return {distribute_from(call.inputs()[0], replicated, 0).local()};
      };
    });
    for (int call = 1; call < 4; ++call) {
      const Tensor got = step({full({2}, call + 10 * current_rank())})[0];
      check(to_doubles(got) == std::vector<double>(2, call), to_string(got));
    }
    check(step.counts().replayed == 3, to_string(step.counts()));
  }));
}

TEST_CASE("a computed tensor that is kept outside of a captured step is refused") {
  Tensor outside;
  std::vector<Tensor> list;
  const auto refused = [&](const std::string& what, const StepBody& body) {
    outside = Tensor();
    list.clear();
    CompiledStep step = compile(body);
    step({full({2, 3}, 1)});
    const std::string error = error_of([&] { step({full({2, 3}, 2)}); });
    INFO(error);
    CHECK(
        contains(error, "record: a variable outside of the step, or a member of a module, has a " +
                            what + " after the step"));
    CHECK(contains(error, "return it as a result"));
  };
  refused("f32[2, 3] that 'mul_scalar' has made", [&](StepCall& call) -> Tensors {
    outside = ops::mul_scalar(call.inputs()[0], 2);
    return {ops::sum(call.inputs()[0])};
  });
  refused("f32[2, 3] that 'mul_scalar' has made", [&](StepCall& call) -> Tensors {  // a view of it
    outside = ops::narrow(ops::mul_scalar(call.inputs()[0], 2), 1, 0, 1);
    return {ops::sum(call.inputs()[0])};
  });
  refused("f32[] that 'sum' has made", [&](StepCall& call) -> Tensors {  // and a result
    outside = ops::sum(call.inputs()[0]);
    return {outside};
  });
  refused("f32[4] that 'full' has made", [&](StepCall& call) -> Tensors {
    outside = full({4}, 3);
    return {call.inputs()[0]};
  });
  refused("f32[] that 'sum' has made", [&](StepCall& call) -> Tensors {
    list.push_back(ops::sum(call.inputs()[0]));
    return {call.inputs()[0]};
  });
  refused("f32[] that 'sum' has made", [&](StepCall& call) -> Tensors {  // a graph has it
    Tensor x = ops::clone(call.inputs()[0]);
    x.set_requires_grad();
    outside = ops::sum(ops::square(ops::square(x)));
    return {ops::mul_scalar(outside, 2)};
  });
}

TEST_CASE("distributed tensors that are kept outside of a captured step are refused") {
  REQUIRE_NOTHROW(on_ranks(2, [&](int) {
    const Layout rows = Layout::make(DeviceMesh::make({"d"}, {2}), {Shard(0)});
    Tensor outside;
    for (const bool is_result : {false, true}) {
      CompiledStep keeps = compile([&](StepCall& call) -> Tensors {
        outside = ops::mul_scalar(from_local(call.inputs()[0], rows), 2);
        return {is_result ? outside : from_local(call.inputs()[0], rows)};
      });
      keeps({full({2, 3}, 1)});
      const std::string error = error_of([&] { keeps({full({2, 3}, 2)}); });
      check(contains(error, "has a f32[2, 3] that 'mul_scalar' has made"), error);
    }
  }));
}

TEST_CASE("what a captured step keeps without its computing is not refused") {
  Tensor input;
  Tensor view;
  Dims shape;
  double number = 0;
  Tensor within;
  const Tensor written = full({2, 3}, 0);
  CompiledStep step = compile([&](StepCall& call) -> Tensors {
    input = call.inputs()[0];
    view = ops::narrow(call.inputs()[1], 0, 0, 1);
    within = ops::mul_scalar(input, 2);
    shape = within.shape();
    const Tensor result = ops::sum(within);
    ops::add_(call.inputs()[1], within);
    within = Tensor();
    return {result, result};
  });
  for (int call = 1; call < 5; ++call) {
    const Tensors results = step({full({2, 3}, call), written});
    number += 12 * call;
    CHECK(to_doubles(results[0])[0] == 12 * call);
    CHECK(to_doubles(results[1])[0] == 12 * call);
    CHECK(to_doubles(view)[0] == number / 6);
  }
  CHECK(step.counts().replayed == 2);
}

TEST_CASE("a captured step in which the host takes the address of values is refused") {
  const Tensor kept = full({2}, 1);
  const auto refused = [&](const Computed& computed) {
    CompiledStep step =
        compile([&](StepCall& call) -> Tensors { return {computed(call.inputs()[0])}; });
    step({full({2}, 1)});
    const std::string error = error_of([&] { step({full({2}, 2)}); });
    INFO(error);
    CHECK(contains(error, "record: the host takes the address of the values of a f32[2]"));
    CHECK(contains(error, "write by operators"));
  };
  refused([](const Tensor& x) {
    const Tensor made = empty({2});
    made.data<float>()[0] = made.data<float>()[1] = 3;
    return ops::add(x, made);
  });
  refused([](const Tensor& x) {
    static_cast<float*>(x.raw_data())[0] = 7;
    return ops::mul_scalar(x, 2);
  });
  refused([&](const Tensor& x) {  // a tensor that is no part of the step
    kept.data<float>()[0] += 1;
    return ops::mul_scalar(x, 2);
  });
  refused([](const Tensor& x) { return ops::mul_scalar(x, x.data<float>()[1] > 0 ? 2 : 3); });
}
