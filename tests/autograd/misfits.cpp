// Gradients that do not fit their tensors, or do not arrive.
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

#include "support.hpp"

using namespace tessera;
using namespace on_graph;

namespace {

/// x + y whose backward gives both operands `gradient`.
Tensor added(const Tensor& x, const Tensor& y, const Tensor& gradient) {
  const Tensor z = [&] {
    const NoGrad constant;
    return ops::add(x, y);
  }();
  const std::vector<Tensor> inputs = {x, y};
  record_function(
      "added", inputs, {&z, 1},
      [gradient](std::span<const Tensor>, std::span<Tensor> out) { out[0] = out[1] = gradient; });
  return z;
}

/// A copy of its operand whose gradient is whatever the attributes say: by shape or by type.
struct MisfitArgs {
  bool reshape;
};

const Op& misfit_op = register_op<MisfitArgs>(
    {.schema = "misfit_of_tests(x, w)",
     .infer = [](const Call& call,
                 ResultShapes& out) { out.push_back({call.in[0].shape(), call.in[0].dtype()}); },
     .cpu = [](const Call& call,
               std::span<Tensor> out) { operands::copy_elements(call.in[0], out[0]); },
     .backward =
         [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
           out[0] = grads[0];
           out[1] = context.args<MisfitArgs>().reshape ? ops::reshape(grads[0], {grads[0].numel()})
                                                       : ops::cast(grads[0], DType::f32);
         },
     .about = "An operator of the tests with a wrong backward."});

}  // namespace

TEST_CASE("an operator's gradient of the wrong shape or type names operator, operand and both") {
  const Tensor x = leaf({2, 3}, 1);
  const Tensor w = leaf({2, 3}, 1);
  const auto error = [&](bool reshape) {
    return error_of([&] { backward(ops::sum(call_one(misfit_op, {x, w}, MisfitArgs{reshape}))); });
  };
  CHECK(contains(error(true),
                 "backward: the gradient of operand 1 ('w') of 'misfit_of_tests' is wrong "
                 "(expected a plain f64[2, 3], got a plain f64[6]); "));
  CHECK(contains(error(false), "(expected a plain f64[2, 3], got a plain f32[2, 3]); "));
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("a recorded function's gradient and a hook's must fit") {
  const Tensor x = leaf({2, 3}, 1);
  const Tensor y = leaf({2, 3}, 1);
  CHECK(contains(error_of([&] { backward(ops::sum(added(x, y, zeros({3, 2}, DType::f64)))); }),
                 "the gradient of operand 0 of 'added' is wrong (expected a plain f64[2, 3], got "
                 "a plain f64[3, 2])"));
  add_gradient_hook(x, [](const Tensor&) { return zeros({2, 3}); });
  CHECK(contains(error_of([&] { backward(ops::sum(added(x, y, zeros({2, 3}, DType::f64)))); }),
                 "what a hook on a gradient of 'accumulate' returns is wrong (expected a plain "
                 "f64[2, 3], got a plain f32[2, 3])"));
}

TEST_CASE("a root's gradient must fit the root") {
  const Tensor x = leaf({2, 3}, 1);
  const Tensor y = ops::mul_scalar(x, 2);
  const auto error = [&](const Tensor& root) {
    return error_of([&] { backward({&y, 1}, {&root, 1}); });
  };
  CHECK(contains(error(zeros({6}, DType::f64)), "backward: the gradient of a root is wrong"));
  CHECK(contains(error(zeros({2, 3})), "expected a plain f64[2, 3], got a plain f32[2, 3]"));
  const Tensor none;
  CHECK(contains(error(none), "only a root of one element needs no gradient"));
}

TEST_CASE(
    "a gradient is distributed exactly where its tensor is, in any layout of terms that add") {
  set_current_rank(0);
  const DeviceMesh mesh = DeviceMesh::make({"data", "tensor"}, {1, 1});
  const DeviceMesh other = DeviceMesh::make({"data"}, {1});
  const auto place = [](const DeviceMesh& on, std::vector<Placement> placements) {
    return from_local(full({2, 3}, 1, DType::f64), Layout::make(on, placements));
  };
  const Tensor x = place(mesh, {Shard(0), Replicate()}).set_requires_grad();
  const Tensor y = ops::mul_scalar(x, 2);
  const auto error = [&](const Tensor& root) {
    return error_of([&] { backward({&y, 1}, {&root, 1}, {.retain_graph = true}); });
  };
  for (const Placement placement :
       {Shard(0), Shard(1), Replicate(), Partial(), Partial(ReduceOp::avg)}) {
    x.grad() = Tensor();
    CHECK(error(place(mesh, {placement, Replicate()})) == "no error");
    CHECK(x.grad().defined());
  }
  CHECK(contains(error(place(mesh, {Partial(ReduceOp::max), Replicate()})), "root is wrong"));
  CHECK(contains(error(place(other, {Shard(0)})), "distributed over mesh(data=1, tensor=1)"));
  CHECK(contains(error(full({2, 3}, 1, DType::f64)), "got a plain f64[2, 3]"));

  const Tensor plain = leaf({2, 3}, 1);
  const Tensor z = ops::mul_scalar(plain, 2);
  const Tensor wrong = place(mesh, {Shard(0), Replicate()});
  CHECK(contains(error_of([&] { backward({&z, 1}, {&wrong, 1}); }), "expected a plain f64[2, 3]"));
}

TEST_CASE("a gradient that does not arrive leaves grad() undefined and stops no other") {
  const Tensor x = leaf({2, 3}, 1);
  const Tensor y = leaf({2, 3}, 1);
  int calls = 0;
  add_gradient_hook(x, [&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  add_post_accumulate_hook(x, [&](Tensor&) { ++calls; });
  // Steps of one and of several results wait for it.
  const Tensor parts = ops::unbind(ops::mul_scalar(x, 2), 0)[0];
  const Tensor nothing = added(parts, parts, Tensor());
  backward(ops::add(ops::sum(nothing), ops::sum(y)));
  CHECK(calls == 0);
  CHECK_FALSE(x.grad().defined());
  CHECK(to_doubles(y.grad()) == repeated(6, 1));

  const Tensor lost = ops::sum(added(x, y, Tensor()));
  const Tensor none;
  const std::vector<Tensor> wanted = {x, y};
  for (const Tensor& gradient : gradients({&lost, 1}, {&none, 1}, wanted)) {
    CHECK_FALSE(gradient.defined());
  }
}
