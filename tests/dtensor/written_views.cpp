// A write through a view reaches the tensor, or it is an error: no write is lost in a copy.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

#include "adamw_step.hpp"
#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::numbered;
using dtensor_test::on_ranks;
using dtensor_test::values;

namespace {

constexpr const char* lost = "is a view whose tensor was redistributed for it";

}  // namespace

TEST_CASE("a view in a redistribution scope is a copy that may be read and not written") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor x = distribute(numbered({6, 2}), Layout::make(mesh, {Shard(0)}));
    const std::vector<double> before = values(x);
    const AllowRedistribution allowed;
    const Tensor row = ops::select(x, 0, 3);
    const auto whole = [](const Tensor& t) { return to_doubles(full_tensor(t)); };
    check(whole(row) == std::vector<double>{6, 7}, "it is read");
    const Tensor one = distribute(numbered({2}, 1), row.layout());
    const std::vector<std::pair<std::string, std::function<void()>>> writes = {
        {"fill_: operand 'x'", [&] { ops::fill_(row, 5); }},
        {"add_: operand 'a'", [&] { ops::add_(row, one); }},
        {"copy_: operand 'into'", [&] { ops::copy_(row, one); }},
        {"mul_out: operand 'out'", [&] { ops::call_into(row, find_op("mul"), {one, one}); }},
        {"foreach_mul_: operand 'tensors[1]'",
         [&] { ops::foreach_mul_(std::vector{one, row}, 2); }},
        {"adamw_: operand 'exp_avg_sqs[0]'",
         [&] {
           const std::vector<Tensor> list{one};
           ops::adamw_(list, list, list, std::vector{row}, std::vector<Tensor>(1),
                       testing::some_adamw_step);
         }},
        // Views of the copy, and what shares its memory otherwise.
        {"fill_: operand 'x'", [&] { ops::fill_(ops::narrow(row, 0, 0, 1), 5); }},
        {"fill_: operand 'x'", [&] { ops::fill_(ops::expand(row, {3, 2}), 5); }},
        {"fill_: operand 'x'", [&] { ops::fill_(ops::detach(row), 5); }},
        {"fill_: operand 'x'", [&] { ops::fill_(to_local(row), 5); }},
        {"fill_: operand 'x'", [&] { ops::fill_(ops::select(to_local(row), 0, 0), 5); }},
    };
    for (const auto& [text, write] : writes) {
      const std::string error = error_of(write);
      check(contains(error, text) && contains(error, lost), text + " gives " + error);
    }
    check(values(x) == before && whole(row) == std::vector<double>{6, 7}, "nothing is written");
    check(whole(one) == std::vector<double>{1, 2}, "no other operand either");
    // As an operand that is read, and copied.
    ops::add_(one, row);
    check(whole(one) == std::vector<double>{7, 9}, "it is read by what writes");
    const Tensor own = ops::clone(row);
    ops::fill_(own, 5);
    check(whole(own) == std::vector<double>{5, 5}, "a clone is written");
  });
}

TEST_CASE("the same holds on the meta device, before any rank starts") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  const Tensor x = distributed_empty({6, 2}, Layout::make(mesh, {Shard(0)}), DType::f64, meta);
  const AllowRedistribution allowed;
  check(contains(error_of([&] { ops::fill_(ops::select(x, 0, 3), 5); }), lost), "select");
  ops::fill_(ops::select(x, 1, 1), 5);
}

TEST_CASE("a view that needs no redistribution is written in a scope as outside of one") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor whole = numbered({6, 2});
    for (const Placement placement : {Placement(Shard(0)), Placement(Replicate())}) {
      const Tensor x = distribute(whole, Layout::make(mesh, {placement}));
      const AllowRedistribution allowed;
      ops::fill_(ops::select(x, 1, 1), 5);
      const std::vector<double> expected{0, 5, 2, 5, 4, 5, 6, 5, 8, 5, 10, 5};
      check(to_doubles(full_tensor(x)) == expected, to_string(placement));
    }
  });
}

TEST_CASE("what is written is never converted, not even by a cut that costs nothing") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor whole = distribute(numbered({4}), Layout::replicated(mesh));
    const Tensor cut = distribute(numbered({4}), Layout::make(mesh, {Shard(0)}));
    check(contains(error_of([&] { ops::add_(whole, cut); }), "add_: "), "outside of a scope");
    check(values(whole) == std::vector<double>{0, 1, 2, 3}, "nothing is written");
    const AllowRedistribution allowed;
    ops::add_(whole, cut);  // the other operand is gathered
    check(values(whole) == std::vector<double>{0, 2, 4, 6}, "the whole is written");
  });
}

TEST_CASE("a gradient that came through such a view may be written") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    Tensor x = distribute(numbered({4, 2}), Layout::make(mesh, {Shard(0)}));
    x.set_requires_grad();
    const AllowRedistribution allowed;
    for (int times = 1; times <= 2; ++times) {
      // Backward of the transpose is a view of a gradient that lies by columns.
      const Tensor turned = ops::transpose(ops::mul_scalar(x, 1), 0, 1);
      const Tensor weights = distribute(numbered({8}), Layout::replicated(mesh));
      backward(ops::sum(ops::mul(ops::reshape(turned, {8}), weights)));
      check(to_doubles(ops::mul_scalar(full_tensor(x.grad()), 1.0 / times)) ==
                std::vector<double>{0, 4, 1, 5, 2, 6, 3, 7},
            "accumulated");
    }
    const NoGrad constant;
    ops::foreach_mul_(std::vector{x.grad()}, 0.5);
    check(to_doubles(full_tensor(x.grad())) == std::vector<double>{0, 4, 1, 5, 2, 6, 3, 7},
          "and clipped");
  });
}

TEST_CASE("a redistributed tensor has memory of its own") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    // The cut of the first dim is a piece of the replica, and a term of a sum may be all of it:
    // written there, the replicas would differ from then on.
    for (const Placement to : {Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())}) {
      const Tensor x = distribute(numbered({4, 2}), Layout::replicated(mesh));
      ops::mul_scalar_(redistribute(x, {to}), 3);
      check(values(x) == to_doubles(numbered({4, 2})), to_string(to));
      PendingRedistribution pending = redistribute_async(x, Layout::make(mesh, {to}));
      ops::mul_scalar_(pending.wait(), 3);
      check(values(x) == to_doubles(numbered({4, 2})), to_string(to) + ", asynchronous");
    }
  });
}

TEST_CASE("a distributed tensor that is written in place continues its history") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Layout rows = Layout::make(mesh, {Shard(0)});
    const Tensor x = distribute(numbered({4, 2}), rows).set_requires_grad();
    const Tensor w = distribute(numbered({2}, 3), Layout::replicated(mesh)).set_requires_grad();
    const Tensor h = ops::mul_scalar(x, 2);
    ops::mul_(h, w);
    ops::add_scalar_(h, 1);
    check(h.layout() == rows, "it keeps its layout");
    backward(ops::sum(h));
    check(to_doubles(full_tensor(x.grad())) == std::vector<double>{6, 8, 6, 8, 6, 8, 6, 8},
          "twice the factors");
    check(to_doubles(full_tensor(w.grad())) == std::vector<double>{24, 32}, "twice the columns");

    const Tensor same = detached(h);  // another distributed tensor of the same local one
    check(contains(error_of([&] { ops::mul_scalar_(h, 2); }), "other tensors share its memory"),
          "the local tensor is shared");
  });
}
