// What outlives all tensors of a Spec holds it: steps of the graph, recorded programs, caches.
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;

#include "../tensor/held_specs.hpp"
#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::numbered;
using dtensor_test::on_ranks;

TEST_CASE("a step of the graph holds the Spec of its gradient") {
  on_ranks(1, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tape"}, {1});
    const std::size_t before = held_specs();
    const Tensor x = distribute(numbered({11, 3}), Layout::replicated(mesh)).set_requires_grad();
    check(held_specs() == before + 1, "x holds its Spec");
    const Layout columns = Layout::make(mesh, {Shard(1)});
    {
      const Tensor dropped = to_local(x, columns);
      check(held_specs() == before + 2, "and the step that of the gradient");
    }
    check(held_specs() == before + 1, "which is gone with the step");
    const Tensor local = to_local(x, columns);
    check(held_specs() == before + 2, "no tensor has it");
    backward(ops::sum(local));
    check(to_string(*x.grad().spec()) == "f64[11, 3] [Shard(1)]", "the gradient's layout");
  });
}

TEST_CASE("a recorded program holds the Specs of its calls") {
  const std::size_t before = held_specs();
  const std::string whole = "f32[13, 2] [Replicate] on mesh(recorded=1)";
  Recording recording;
  // The caches of the thread, and its tensors, are gone with it.
  std::thread([&] {
    on_ranks(1, [&](int) {
      const DeviceMesh mesh = DeviceMesh::make({"recorded"}, {1});
      const Tensor table = full({13, 2}, 3);
      const Tensor indices = full({4}, 1, DType::i64);
      Recorder recorder;
      recorder.input("table", table);
      recorder.input("indices", indices);
      recorder.section(SectionKind::step, [&] {
        const Layout replicated = Layout::replicated(mesh);
        const Tensor y =
            ops::embedding(from_local(table, replicated), from_local(indices, replicated));
        recorder.output("y", y.local());
      });
      recording = recorder.finish({});
      check(recording.program.to_text().find(whole) != std::string::npos, "a call with a Spec");
    });
  }).join();
  CHECK(held_specs() == before + 1);
  CHECK(recording.program.to_text().find(whole) != std::string::npos);
  recording = {};
  CHECK(held_specs() == before);
}

TEST_CASE("a cached redistribution holds its Specs") {
  on_ranks(1, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"cached"}, {1});
    const Layout terms = Layout::make(mesh, {Partial()});
    const std::size_t before = held_specs();
    const auto use = [&] {
      return dtensor_test::values(
          redistribute(from_local(numbered({17, 3}), terms), Layout::make(mesh, {Shard(0)})));
    };
    check(use() == to_doubles(numbered({17, 3})), "the values");
    check(held_specs() == before + 3, "as Partial, as Shard, and the gradient's");
    const std::int64_t kept = propagation_statistics().redistributions;
    check(use() == to_doubles(numbered({17, 3})), "the values, from the cache");
    check(propagation_statistics().redistributions == kept, "which has no more");
  });
}
