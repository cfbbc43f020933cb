// The code of docs/distributed-tensors.md and its further pages, as it is printed there, on ranks
// that are threads; what is around it checks what the pages say of it.
#include <cstdint>
#include <functional>
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

TEST_CASE("guide: meshes") {
  on_ranks(8, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard", "tensor"}, {2, 2, 2});
    const int rank = current_rank();

    mesh.rank_at({1, 0, 1});                            // 5
    mesh.coordinates_of(5);                             // {1, 0, 1}
    const DeviceMesh row = mesh.slice("tensor", rank);  // the axis through this rank
    const DeviceMesh plane = mesh.at("replicate", 0);   // ranks 0 to 3
    const std::vector<std::string> names = {"replicate", "shard"};
    const DeviceMesh data = mesh.flatten(names, "data");  // mesh(data=4, tensor=2)
    const DeviceMesh other = DeviceMesh::make({"pair"}, {2}, {6, 3});

    check(mesh.rank_at({1, 0, 1}) == 5 && *mesh.coordinates_of(5) == Dims{1, 0, 1}, "both ways");
    check(row.size() == 2 && plane.size() == 4 && other.ranks()[0] == 6, "parts");
    check(to_string(data) == "mesh(data=4, tensor=2)", to_string(data));
  });
}

TEST_CASE("guide: making distributed tensors") {
  on_ranks(4, [](int) {
    const Tensor weights = numbered({6, 4});
    const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
    const MeshScope scope(mesh);  // placements without a mesh are of this one
    const Layout layout = Layout::make({Shard(0), Shard(1)});

    const Tensor a = distribute(weights, layout);          // every rank holds a copy
    const Tensor b = distribute_from(weights, layout, 0);  // rank 0's is sent out
    const Tensor c = distributed_normal({6, 4}, 0, 1, layout, random_stream());
    const Tensor d = from_local(a.local(), layout);  // the parts are there already

    check(values(a) == part_of(weights, layout) && values(b) == values(a), "parts");
    check(c.shape() == Dims{6, 4} && c.local().shape() == Dims{3, 2}, "its own part only");
    check(d.shape() == Dims{6, 4} && d.local().same_as(a.local()) == false, "shares memory");
    check(d.local().raw_data() == a.local().raw_data(), "shares memory");
  });
}

TEST_CASE("guide: operators") {
  on_ranks(4, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
    const Tensor x = distributed_ones({8, 6}, Layout::make(mesh, {Shard(0), Replicate()}));
    const Tensor w = distributed_ones({6, 10}, Layout::make(mesh, {Replicate(), Shard(1)}));

    const Tensor y = ops::mm(x, w);           // f32[8, 10] [Shard(0), Shard(1)]
    const Tensor total = ops::sum(y);         // f32[] [Partial(sum), Partial(sum)]
    const Tensor value = full_tensor(total);  // a plain tensor: 480 on every rank

    check(to_string(*y.spec()) == "f32[8, 10] [Shard(0), Shard(1)]", to_string(*y.spec()));
    check(to_string(*total.spec()) == "f32[] [Partial(sum), Partial(sum)]",
          to_string(*total.spec()));
    check(value.item() == 480, "the value");
    const std::string error = error_of([&] { ops::mm(x, ops::transpose(x, 0, 1)); });
    check(contains(error, "must be redistributed to") && contains(error, "mm: operand"), error);

    const AllowRedistribution allowed;
    const Tensor gram = ops::mm(x, ops::transpose(x, 0, 1));
    check(allowed.count() == 1, "one operand was gathered");
    check(full_tensor(gram).shape() == Dims{8, 8}, "the product");

    const Tensor upper = ops::triu(full({8, 8}, 1));  // the same on every rank
    const PlainIsReplicate promise;
    const Tensor masked = ops::mul(gram, upper);
    check(masked.layout() == gram.layout(), to_string(*masked.spec()));
    check(to_doubles(full_tensor(masked)) == to_doubles(ops::mul_scalar(upper, 6)), "6 or 0");
  });
}

TEST_CASE("guide: redistribution") {
  on_ranks(4, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
    const Tensor x = distribute(numbered({8, 6}), Layout::make(mesh, {Shard(0), Partial()}));

    const Tensor y = redistribute(x, {Shard(0), Shard(1)});  // a reduce-scatter
    const Tensor z = redistribute_axis(y, 0, Replicate());   // an all-gather on axis 0
    const std::string plan = explain(x.layout(), z.layout(), x.shape(), 8);

    check(values(z) == part_of(numbered({8, 6}), z.layout()), "the value");
    check(contains(plan, "reduce_scatter on axis 'tensor'"), plan);

    PendingRedistribution pending = redistribute_async(x, y.layout());
    const Tensor norm = ops::sum(ops::square(y));  // while the others are on their way
    const Tensor same = pending.wait();

    check(values(same) == values(y), "the same");
    check(full_tensor(norm).item() > 0, "something else");

    const DeviceMesh line = DeviceMesh::make({"line"}, {4}, {3, 1, 0, 2});
    const Tensor moved = redistribute(z, Layout::make(line, {Shard(0)}));

    check(values(moved) == part_of(numbered({8, 6}), moved.layout()), "another mesh");
  });
}

TEST_CASE("guide: a pipeline of two stages") {
  on_ranks(4, [](int) {
    const DeviceMesh first = DeviceMesh::make({"data"}, {2}, {0, 1});
    const DeviceMesh second = DeviceMesh::make({"data"}, {2}, {2, 3});
    const bool in_first = first.contains(current_rank());
    const Layout batch = Layout::make(first, {Shard(0)});
    Tensor w = distribute(numbered({6, 6}), Layout::replicated(in_first ? first : second));
    w.set_requires_grad();

    Tensor hidden;
    if (in_first) {
      hidden = ops::matmul(distribute(numbered({8, 6}), batch), w);
    }
    const SpecHandle spec = Spec::make(batch, {8, 6}, DType::f64);
    const Crossing sent = cross_meshes(hidden, *spec, Layout::make(second, {Shard(0)}), true);
    const Tensor root = in_first ? sent.root : ops::sum(ops::matmul(sent.value, w));
    backward(root);  // the first stage waits here for the gradient of `hidden`

    const Tensor x = numbered({8, 6});
    const Tensor v = numbered({6, 6});
    const Tensor ones = full({8, 6}, 1, DType::f64);
    const Tensor reference =
        in_first ? ops::matmul(ops::transpose(x, 0, 1), ops::matmul(ones, ops::transpose(v, 0, 1)))
                 : ops::matmul(ops::transpose(ops::matmul(x, v), 0, 1), ones);
    check(to_doubles(full_tensor(w.grad())) == to_doubles(reference), "the gradients");
  });
}

TEST_CASE("guide: gradients at the border") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"data"}, {2});
    Tensor w = distribute(full({3}, 2, DType::f64), Layout::make(mesh, {Replicate()}));
    w.set_requires_grad();
    const Tensor mine = full({3}, current_rank(), DType::f64);  // this rank's data

    const Tensor local = to_local(w, Layout::make(mesh, {Partial()}));
    const Tensor loss = ops::sum(ops::mul(local, mine));  // differs on each rank
    backward(loss);
    const Tensor gradient = redistribute(w.grad(), w.layout());  // the sum over all ranks

    check(values(gradient) == std::vector<double>(3, 1), "0 + 1");
    check(contains(error_of([&] { to_local(w); }), "pass it"), "asked for");
  });
}

TEST_CASE("guide: local_map") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"data"}, {2});
    const Layout rows = Layout::make(mesh, {Shard(0)});
    const Tensor x = distribute(numbered({6, 4}), rows);

    const auto centred = [](std::span<const Tensor> in) {
      return Tensors{ops::sub(in[0], ops::mean(in[0], {1}, true))};
    };
    LocalMapOptions options;
    options.in = {rows};
    options.out = {rows};
    const Tensor y = local_map(centred, {&x, 1}, options)[0];

    const Tensor whole = numbered({6, 4});
    check(values(y) == part_of(ops::sub(whole, ops::mean(whole, {1}, true)), rows),
          "each row by itself");
  });
}

TEST_CASE("guide: reports") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
    const Tensor x = distribute(numbered({4, 6}), Layout::make(mesh, {Shard(1)}));

    const CommunicationReport report;
    const Tensor y = redistribute(x, {Shard(0)});
    report.count("all_to_all");  // 1
    report.bytes();              // 48: what this rank received
    report.to_string();  // "1 x all_to_all on tensor, 48 B, 0.012 ms, forward (redistribute)\n"
    report.to_json();    // [{"axis":"tensor","bytes":48,"operation":"all_to_all",...}]

    check(report.count("all_to_all") == 1 && report.bytes() == 48, report.to_string());
    check(report.to_string().starts_with("1 x all_to_all on tensor, 48 B, "), report.to_string());
    check(report.to_json().starts_with("[{\"axis\":\"tensor\",\"bytes\":48,"), report.to_json());
    check(y.layout() == Layout::make(mesh, {Shard(0)}), "its layout");
  });
}

TEST_CASE("guide: accounts") {
  Account account;
  {
    const AccountScope scope(account);
    const Tensor y = ops::mm(empty({64, 32}, DType::f32, meta), empty({32, 16}, DType::f32, meta));
  }
  const double flops = account.model_flops;               // 65536: 2 x 64 x 16 x 32
  const double bytes = account.operators.at("mm").bytes;  // 14336: two operands and a result
  account.to_string();                                    // a table of operators and collectives

  CHECK(flops == 65536);
  CHECK(bytes == 14336);
  CHECK(account.to_string().find("14.0 KiB") != std::string::npos);
}

TEST_CASE("guide: the cookbook") {
  on_ranks(4, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"dp", "tp"}, {2, 2});
    const MeshScope scope(mesh);
    const Tensor tensor = numbered({8, 8});
    const int rank = current_rank();

    // distribute_tensor(tensor, mesh, [Shard(0), Replicate()])
    const Tensor x = distribute_from(tensor, Layout::make({Shard(0), Replicate()}), 0);
    // DTensor.from_local(local, mesh, [Shard(0), Replicate()], run_check=True)
    const Tensor y = from_local(x.local(), x.layout(), std::nullopt, true);
    // x.redistribute(mesh, [Replicate(), Shard(1)])
    const Tensor z = redistribute(x, {Replicate(), Shard(1)});
    // x.to_local(grad_placements=[Shard(0), Partial()]), x.full_tensor()
    const Tensor local = to_local(x, Layout::make({Shard(0), Partial()}));
    const Tensor whole = full_tensor(x);
    // x.device_mesh, x.placements, x.shape
    const DeviceMesh& of_x = x.layout().mesh();
    const auto placements = x.layout().placements();
    // mesh["tp"], mesh.get_local_rank("tp"), mesh.get_group("tp")
    const DeviceMesh tp = mesh.slice("tp", rank);
    const int index = mesh.coordinate_of(rank, mesh.axis_index("tp"));
    collective::Communicator& group = communicator(mesh, mesh.axis_index("tp"));

    check(values(x) == part_of(tensor, x.layout()) && values(y) == values(x), "x and y");
    check(values(z) == part_of(tensor, z.layout()) && local.shape() == Dims{4, 8}, "z, local");
    check(to_doubles(whole) == to_doubles(tensor) && of_x == mesh, "the whole");
    check(placements[0] == Shard(0) && tp.size() == 2 && group.rank() == index, "the mesh");
  });
}
