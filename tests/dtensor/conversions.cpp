// Ways into distributed tensors and out of them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
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

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::numbered;
using dtensor_test::on_ranks;
using dtensor_test::part_of;
using dtensor_test::values;

namespace {

DeviceMesh grid() { return DeviceMesh::make({"a", "b"}, {2, 2}); }

Tensor term(const std::vector<double>& elements) {
  return from_values(std::span<const double>(elements),
                     {static_cast<std::int64_t>(elements.size())});
}

}  // namespace

TEST_CASE("distribute keeps leaves leaves, and computed tensors computed") {
  on_ranks(4, [](int) {
    const MeshScope scope(grid());
    Tensor leaf = numbered({5, 3});
    check(!distribute(leaf, {Shard(0), Shard(1)}).requires_grad(), "no gradient unasked");
    leaf.set_requires_grad();
    const Tensor x = distribute(leaf, {Shard(0), Shard(0)});
    check(x.requires_grad() && is_leaf(x), "a leaf of a leaf");
    check(x.layout().mesh() == grid(), "the mesh of the scope");
    check(values(x) == part_of(leaf, x.layout()), "its part");
    check(!x.local().storage().references() || values(x).size() == 0 ||
              x.local().raw_data() != leaf.raw_data(),
          "memory of its own");

    const Tensor computed = ops::mul_scalar(leaf, 2);
    const Tensor y = distribute(computed, {Shard(1), Partial()});
    check(y.requires_grad() && !is_leaf(y), "computed from what was computed");
    const Tensor whole = full_tensor(redistribute(detached(y), {Replicate(), Replicate()}));
    check(to_doubles(whole) == to_doubles(computed), "terms that add up to it");
    // Each rank has its own copy of the leaf, and every copy gets the whole gradient.
    const Tensor g = distribute(numbered({5, 3}, 7), gradient_layout(y.layout()));
    backward({&y, 1}, {&g, 1});
    check(to_doubles(leaf.grad()) == to_doubles(ops::mul_scalar(numbered({5, 3}, 7), 2)),
          "the whole gradient");

    const Tensor moved = distribute(x, {Replicate(), Shard(1)});
    check(moved.layout() == Layout::make({Replicate(), Shard(1)}) && !is_leaf(moved),
          "a distributed tensor is redistributed");
    check(contains(error_of([&] { distribute(leaf, {Shard(2), Replicate()}); }),
                   "distribute: layout [Shard(2), Replicate] shards dim 2"),
          "a dim that is not there");
  });
  CHECK(contains(error_of([] { distribute(numbered({2}), {Shard(0)}); }),
                 "distribute: no mesh is current"));
}

TEST_CASE("distribute_from sends each rank its part of the source's copy and nothing else") {
  on_ranks(4, [](int) {
    const Layout layout = Layout::make(grid(), {Shard(0), Replicate()});
    Tensor mine = numbered({5, 3}, 100 * current_rank());
    mine.set_requires_grad();
    const CommunicationReport report;
    const Tensor x = distribute_from(mine, layout, 2);
    check(values(x) == part_of(numbered({5, 3}, 200), layout), "the source's values");
    check(x.requires_grad() && is_leaf(x), "a leaf");
    const std::int64_t received = current_rank() == 2 ? 0 : x.local().numel() * 8;
    check(report.bytes() == received, "its own part");
    check(contains(error_of([&] { distribute_from(mine, layout, 4); }), "rank 4 is not in"),
          "a source that is not there");
  });
}

TEST_CASE("from_local gives its gradient to the rank's own tensor, by the reduction's share") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const bool first = current_rank() == 0;
    struct Case {
      ReduceOp op;
      std::vector<double> gradient;  // for an incoming gradient of 8 each
    };
    // Terms: rank 0 (4, 2, 5), rank 1 (2, 4, 5).
    const std::vector<Case> cases = {
        {ReduceOp::sum, {8, 8, 8}},
        {ReduceOp::avg, {4, 4, 4}},
        {ReduceOp::max, first ? std::vector<double>{8, 0, 4} : std::vector<double>{0, 8, 4}},
        {ReduceOp::min, first ? std::vector<double>{0, 8, 4} : std::vector<double>{8, 0, 4}},
        {ReduceOp::product,
         first ? std::vector<double>{16, 32, 40} : std::vector<double>{32, 16, 40}}};
    for (const Case& c : cases) {
      Tensor local = first ? term({4, 2, 5}) : term({2, 4, 5});
      local.set_requires_grad();
      const Tensor x = from_local(local, Layout::make(mesh, {Partial(c.op)}));
      const Tensor y = full_tensor(x);
      const Tensor g = full({3}, 8, DType::f64);
      backward({&y, 1}, {&g, 1});
      check(to_doubles(local.grad()) == c.gradient, std::string(name_of(c.op)));
      // to_local's own gradient is what the terms' gradients make up.
      if (c.op != ReduceOp::product) {
        Tensor z = detached(from_local(detached(local), Layout::make(mesh, {Partial(c.op)})));
        z.set_requires_grad();
        const Tensor t = to_local(z);
        backward({&t, 1}, {&local.grad(), 1});
        check(values(redistribute(z.grad(), {Replicate()})) == std::vector<double>(3, 8),
              "back from the terms of " + std::string(name_of(c.op)));
      }
    }
  });
  on_ranks(4, [](int) {
    Tensor local = term({1});
    local.set_requires_grad();
    check(contains(error_of([&] {
                     from_local(local, Layout::make(grid(), {Partial(), Partial(ReduceOp::max)}));
                   }),
                   "several kinds of reductions"),
          "two kinds of reductions");
  });
}

TEST_CASE("from_local gives a norm's terms their shares of its gradient") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const bool first = current_rank() == 0;
    for (const double order : {2.0, 3.0, 0.5}) {
      const std::vector<double> mine =
          first ? std::vector<double>{3, 0, 5, 0} : std::vector<double>{4, 0, 12, 2};
      const std::vector<double> other =
          first ? std::vector<double>{4, 0, 12, 2} : std::vector<double>{3, 0, 5, 0};
      Tensor local = term(mine);
      local.set_requires_grad();
      const Tensor x = from_local(local, Layout::make(mesh, {NormPartial(order)}));
      const Tensor y = full_tensor(x);
      const Tensor g = full({4}, 8, DType::f64);
      backward({&y, 1}, {&g, 1});
      for (std::size_t i = 0; i < 4; ++i) {
        const double whole =
            std::pow(std::pow(mine[i], order) + std::pow(other[i], order), 1 / order);
        const double share = mine[i] == 0 ? 0 : 8 * std::pow(mine[i] / whole, order - 1);
        check(std::abs(to_doubles(y)[i] - whole) < 1e-12, "the norm of both");
        check(std::abs(to_doubles(local.grad())[i] - share) < 1e-12, "its own share");
      }
      Tensor z = detached(x);
      z.set_requires_grad();
      check(contains(error_of([&] { to_local(z); }), "to_local: x is Partial(norm("),
            "what ranks do with their terms does not follow");
    }
    const Tensor x = numbered({4});
    check(contains(error_of([&] { distribute(x, Layout::make(mesh, {NormPartial(2)})); }),
                   "a value cannot be converted to Partial(norm(2))"),
          "a value is no norm of parts");
    const Tensor none = distributed_zeros({2}, Layout::make(mesh, {NormPartial(2)}));
    check(to_doubles(full_tensor(none)) == std::vector<double>(2, 0), "zeros are");
  });
}

TEST_CASE("from_local compares notes when it is asked to") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {3});
  on_ranks(3, [&](int) {
    const int rank = current_rank();
    const Layout rows = Layout::make(mesh, {Shard(0)});
    // 7 rows over 3 ranks: 3, 3, 1; nobody states the shape.
    const CommunicationReport report;
    const Tensor x = from_local(full({rank < 2 ? 3 : 1, 2}, rank), rows, std::nullopt, true);
    check(x.shape() == Dims{7, 2}, "the shape that the parts make up");
    check(report.count("all_gather") == 1, "the check is communication, and told");
    check(contains(
              error_of([&] { from_local(zeros({rank < 2 ? 2 : 3, 2}), rows, std::nullopt, true); }),
              "rank 0 has a local tensor of [2, 2], its part of [7, 2] in [Shard(0)] is "
              "[3, 2]"),
          "chunks in the wrong places");
    check(contains(error_of([&] {
                     from_local(full({2}, rank), Layout::replicated(mesh), std::nullopt, true);
                   }),
                   "ranks 0 and 1 hold copies of one part of [2] in [Replicate], and their values "
                   "differ"),
          "copies that differ");
    from_local(full({2}, rank), Layout::make(mesh, {Partial()}), std::nullopt, true);
    check(contains(error_of([&] {
                     from_local(zeros({2}, rank == 1 ? DType::f64 : DType::f32), rows, Dims{6},
                                true);
                   }),
                   "rank 0 has f32[2], rank 1 f64[2]"),
          "types that differ");
    check(contains(error_of([&] { from_local(zeros({2}), rows, Dims{4 + rank}, true); }),
                   "different global shapes"),
          "shapes that differ");
    check(
        contains(error_of([&] { from_local(zeros({2}), rows, Dims{7}); }), "pass the global shape"),
        "unchecked, a rank sees its own part only");
  });
}

TEST_CASE("to_local wants to know a gradient's layout where it does not follow") {
  on_ranks(4, [](int) {
    Tensor x = distribute(numbered({4, 2}), Layout::make(grid(), {Shard(0), Replicate()}));
    to_local(x);
    x.set_requires_grad();
    check(contains(error_of([&] { to_local(x); }), "x is Replicate on axis 'b'"), "asked for");
    const Tensor mine = to_local(x, Layout::make(grid(), {Shard(0), Partial()}));
    const Tensor g = full(mine.shape(), 1, DType::f64);
    backward({&mine, 1}, {&g, 1});
    check(values(redistribute(x.grad(), x.layout())) ==
              std::vector<double>(static_cast<std::size_t>(mine.numel()), 2),
          "two ranks' terms");
    const Tensor whole = full_tensor(x, Layout::make(grid(), {Partial(), Partial()}));
    check(to_doubles(whole) == to_doubles(numbered({4, 2})), "the whole");
  });
}

TEST_CASE("factories make the local part of what one device would make") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2}, {0, 1, 2, 3});
  set_seed(5);
  RandomStream& one = random_stream("test");
  const Tensor uniform = ops::uniform_(zeros({5, 3}), -1, 1, one);
  const Tensor normal = ops::normal_(zeros({5, 3}, DType::f64), 2, 3, one);
  const std::uint64_t moved = one.offset;
  on_ranks(5, [&](int) {
    set_seed(5);
    RandomStream& stream = random_stream("test");
    for (const Layout& layout :
         {Layout::make(mesh, {Shard(0), Shard(0)}), Layout::make(mesh, {Shard(1), Replicate()})}) {
      stream.offset = 0;
      const Tensor u = distributed_uniform({5, 3}, -1, 1, layout, stream);
      const Tensor n = distributed_normal({5, 3}, 2, 3, layout, stream, DType::f64);
      const Tensor range = distributed_arange(3, -11, -3, Layout::make(mesh, {Shard(0), Shard(0)}));
      check(stream.offset == moved, "every rank's stream moves on");
      if (current_rank() == 4) {
        check(!u && !n && !range && !distributed_zeros({2}, Layout::replicated(mesh)),
              "a rank outside of the mesh holds nothing");
        continue;
      }
      check(values(u) == part_of(uniform, layout), "the same uniform numbers");
      check(values(n) == part_of(normal, layout), "the same normal numbers");
      check(range.shape() == Dims{5} && range.dtype() == DType::i64, "its shape and type");
      check(values(range) == part_of(term({3, 0, -3, -6, -9}), range.layout()), "its numbers");
      check(values(distributed_ones({5, 3}, layout)) == part_of(full({5, 3}, 1), layout), "ones");
      check(!u.requires_grad() &&
                distributed_empty({2, 2}, layout).set_requires_grad().requires_grad(),
            "a leaf like any other");
    }
  });
  on_ranks(2, [](int) {
    const Layout terms = Layout::make(DeviceMesh::make({"a"}, {2}), {Partial()});
    check(
        contains(error_of([&] { distributed_ones({2}, terms); }), "a tensor cannot be created as"),
        "Partial");
    check(values(distributed_zeros({2}, terms)) == std::vector<double>(2, 0), "zeros always can");
    check(contains(error_of([&] { distributed_arange(0, 4, -1, gradient_layout(terms)); }),
                   "never reaches the end"),
          "a step in the wrong direction");
  });
}

TEST_CASE("local_map makes a function of local parts one of distributed tensors") {
  on_ranks(4, [](int) {
    const DeviceMesh mesh = grid();
    const Layout rows = Layout::make(mesh, {Shard(0), Replicate()});
    const Tensor whole = numbered({5, 3});
    Tensor x = distribute(whole, rows);
    x.set_requires_grad();
    // The sum over the columns of each row, and of all rows: rows are apart, so the second is a
    // term of a sum.
    const LocalFunction sums = [](std::span<const Tensor> in) {
      return Tensors{ops::sum(in[0], {1}), ops::sum(in[0]), in[1]};
    };
    LocalMapOptions options;
    options.in = {rows, {}};
    options.in_gradients = {rows, {}};
    options.out = {rows, Layout::make(mesh, {Partial(), Replicate()}), {}};
    options.out_shapes = {{5}, {}, {}};
    const Tensors out = local_map(sums, std::vector<Tensor>{x, term({1})}, options);
    check(values(out[0]) == part_of(ops::sum(whole, {1}), rows), "rows");
    check(full_tensor(detached(out[1])).item() == 105, "all");
    check(!out[2].is_distributed(), "a plain tensor stays plain");
    const Tensor g = distribute(full({}, 2, DType::f64), Layout::replicated(mesh));
    backward({&out[1], 1}, {&g, 1});
    check(values(x.grad()) == part_of(full({5, 3}, 2), rows), "the gradient");

    const Tensor columns = distribute(whole, Layout::make(mesh, {Shard(1), Replicate()}));
    const std::vector<Tensor> other = {columns, term({1})};
    check(contains(error_of([&] { local_map(sums, other, options); }),
                   "local_map: input 0 is f64[5, 3] [Shard(1), Replicate]"),
          "an input in another layout");
    options.redistribute_inputs = true;
    check(values(local_map(sums, other, options)[0]) == values(out[0]), "redistributed");
    options.out_shapes = {};
    const std::string error = error_of([&] { local_map(sums, other, options); });
    check(contains(error, "local_map: the global shape of result 0, which is sharded"),
          "an uneven result: " + error);
    options.out.pop_back();
    options.in.pop_back();
    check(contains(error_of([&] { local_map(sums, other, options); }),
                   "1 entries in 'in' for 2 inputs"),
          "lists of other lengths");
  });
}

TEST_CASE("copies and detached tensors keep their layout") {
  on_ranks(4, [](int) {
    const Layout layout = Layout::parse(grid(), "[StridedShard(0, 2), Shard(0)]");
    Tensor x = distribute(numbered({7}), layout);
    x.set_requires_grad();
    const Tensor y = ops::mul_scalar(x, 3);
    const Tensor g = distribute(numbered({7}), layout);
    backward({&y, 1}, {&g, 1});
    Tensor copy = deep_copy(x);
    check(copy.layout() == layout && copy.requires_grad() && is_leaf(copy), "a leaf like x");
    check(values(copy) == values(x) && values(copy.grad()) == values(x.grad()), "its values");
    const bool empty_here = copy.local().numel() == 0;
    check(empty_here || copy.local().raw_data() != x.local().raw_data(), "memory of its own");
    const Tensor plain = deep_copy(numbered({3}));
    check(!plain.is_distributed() && to_doubles(plain) == std::vector<double>{0, 1, 2},
          "plain too");
    check(ops::detach(y).layout() == layout && !ops::detach(y).requires_grad(), "detach");
    check(ops::clone(y).layout() == layout && ops::clone(y).requires_grad(), "clone");
    check(to_string(distribute(numbered({4}), Layout::make(grid(), {Replicate(), Shard(0)}))) ==
              "f64[4] [Replicate, Shard(0)]; local f64[2] {" +
                  std::string(current_rank() % 2 == 0 ? "0, 1}" : "2, 3}"),
          to_string(distribute(numbered({4}), Layout::make(grid(), {Replicate(), Shard(0)}))));
  });
}

TEST_CASE("meshes that share a group of ranks share its communicator") {
  const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard", "tensor"}, {1, 2, 2});
  on_ranks(4, [&](int) {
    const int me = current_rank();
    const DeviceMesh slice = mesh.slice("tensor", me);
    check(&communicator(mesh, 2) == &communicator(slice, 0), "a slice's");
    const std::vector<std::string> both = {"shard", "tensor"};
    const DeviceMesh flat = mesh.flatten(both, "flat");
    check(&communicator(mesh, std::vector<int>{1, 2}) == &communicator(flat, 1),
          "a flattened one's");
    check(&communicator(mesh.slice(both, me), 0) == &communicator(mesh, 1), "a plane's");
    check(&communicator(mesh, 1) == &communicator(mesh, 1), "made once");
    check(&communicator(mesh, 1) != &communicator(mesh, 2), "of each group");
    // The stack of meshes is each rank's own, also of ranks that are threads.
    const MeshScope scope(me % 2 == 0 ? mesh : flat);
    check(current_mesh() == (me % 2 == 0 ? mesh : flat), "its own mesh");
  });
}

TEST_CASE("shapes that keep changing do not fill the cache of propagations") {
  const Layout layout = Layout::make(DeviceMesh::make({"a"}, {1}), {Shard(0)});
  const auto negated = [&](std::int64_t extent) {
    return ops::neg(from_local(full({extent, 0}, 1.0), layout));
  };
  negated(1);
  std::int64_t most = 0;
  std::int64_t most_specs = 0;
  for (std::int64_t extent = 2; extent < 80000; ++extent) {
    REQUIRE(negated(extent).shape() == Dims{extent, 0});
    const PropagationStatistics statistics = propagation_statistics();
    most = std::max(most, statistics.kept);
    most_specs = std::max(most_specs, statistics.specs);
    if (extent % 10000 == 0) {  // what is used now and then is kept
      const std::int64_t hits = propagation_statistics().hits;
      negated(1);
      REQUIRE(propagation_statistics().hits == hits + 1);
    }
  }
  CHECK(most > 30000);
  CHECK(most <= 65536);
  CHECK(most_specs <= 2 * 70000);  // twice those that the cache and the other tests hold
}
