// Bytes that a program says a rank receives, against what its communicators are seen to issue.
#include <algorithm>
#include <cstddef>
#include <cstdint>
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
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;

using namespace tessera;
using collective::CallKind;

namespace {

constexpr int ranks = 3;

/// Bytes of the calls that this thread issues.
class Seen final : public collective::Observer {
 public:
  void perform(const collective::Activity& activity, const std::function<void()>& run) override {
    bytes += activity.kind == collective::Activity::Kind::issue ? activity.bytes : 0;
    run();
  }
  std::int64_t bytes = 0;
};

/// This rank's part of `extent` rows: 3 of 7, or 1 of them at the end.
std::int64_t rows(int rank, std::int64_t extent) {
  return chunk_of({0, extent}, ranks, rank).length;
}

Tensor values(const Dims& shape, DType dtype = DType::f32) {
  const std::vector<double> ones(static_cast<std::size_t>(shape.product()), 1);
  return ops::cast(from_values(std::span<const double>(ones), shape), dtype);
}

using Body = std::function<void(int rank, ops::GroupArgument group)>;

/// What programs of these collectives say, and what is seen; of all ranks.
std::vector<std::string> differences(const std::string& name, const Body& body, int count = ranks) {
  std::vector<std::string> found(static_cast<std::size_t>(count));
  collective::run_threads(count, [&](collective::World& world) {
    const int rank = world.rank();
    const auto group = ops::GroupArgument::of(world.everyone());
    Seen seen;
    Recorder recorder;
    recorder.section(SectionKind::step, [&] {
      const collective::ObserverScope scope(seen);
      body(rank, group);
    });
    const Program program = program_of(recorder.finish({}));
    std::int64_t said = 0;
    int calls = 0;
    for (const auto& one : graph::statistics_of(program).collectives) {
      said += one.received;
      calls += one.calls;
    }
    if (calls == 0 || said != seen.bytes) {
      found[static_cast<std::size_t>(rank)] =
          name + " on rank " + std::to_string(rank) + ": the program says " + std::to_string(said) +
          " bytes in " + std::to_string(calls) + " calls, seen are " + std::to_string(seen.bytes);
    }
  });
  return found;
}

/// [ranks, 2] rows to two groups of each rank, as many for each.
Tensor equal_counts(std::int64_t count) {
  const std::vector<std::int64_t> counts(2 * ranks, count);
  return from_values(std::span<const std::int64_t>(counts), {ranks, 2});
}

const std::vector<std::pair<std::string, Body>>& bodies() {
  using ops::RowOrder;
  static const std::vector<std::pair<std::string, Body>> all = {
      {"all_reduce",
       [](int, auto group) { ops::all_reduce(values({11, 3}), ReduceOp::sum, group); }},
      {"all_reduce_", [](int, auto group) { ops::all_reduce_(values({2}), ReduceOp::max, group); }},
      {"all_reduce_async",
       [](int, auto group) {
         ops::all_reduce_async(values({5000}, DType::bf16), ReduceOp::sum, group).wait();
       }},
      {"all_reduce_coalesced_",
       [](int, auto group) {
         const std::vector<Tensor> both = {values({7}), values({100, 3})};
         ops::all_reduce_coalesced_(both, ReduceOp::sum, group, 1);
         ops::wait(both[0]);
       }},
      {"all_gather of uneven shards",
       [](int rank, auto group) { ops::all_gather(values({rows(rank, 7), 2}), 0, 7, group); }},
      {"all_gather of columns",
       [](int rank, auto group) {
         ops::all_gather_async(values({4, rows(rank, 7)}, DType::f64), 1, 7, group).wait();
       }},
      {"all_gather_into",
       [](int rank, auto group) {
         const Tensor whole = ops::shared_empty({7, 3}, DType::f32, group);
         const Tensor shard = values({rows(rank, 7), 3});
         ops::all_gather_into({&whole, 1}, {&shard, 1}, group, 1);
         ops::wait(whole);
         ops::wait_readers({&shard, 1}, group);
       }},
      {"reduce_scatter",
       [](int, auto group) { ops::reduce_scatter(values({7, 5}), 0, ReduceOp::sum, group); }},
      {"reduce_scatter of columns",
       [](int, auto group) {
         ops::reduce_scatter_async(values({5, 9}), 1, ReduceOp::sum, group).wait();
       }},
      {"reduce_scatter_into with wider sums",
       [](int rank, auto group) {
         const Tensor whole = values({7, 3}, DType::bf16);
         const Tensor shard = values({rows(rank, 7), 3});
         ops::reduce_scatter_into({&shard, 1}, {&whole, 1}, ReduceOp::sum, group, 1);
         ops::wait(shard);
         ops::wait_readers({&whole, 1}, group);
       }},
      {"all_to_all",
       [](int rank, auto group) { ops::all_to_all(values({rows(rank, 7), 8}), 0, 7, 1, group); }},
      {"all_to_all_rows to equally many",
       [](int, auto group) {
         // Twelve rows go; the room is twice as large.
         const Tensor there = ops::all_to_all_rows(values({12, 4}), equal_counts(2),
                                                   equal_counts(2), 24, RowOrder::by_group, group);
         ops::all_to_all_rows(there, equal_counts(2), equal_counts(2), 12, RowOrder::by_rank,
                              group);
       }},
      {"shift around a ring",
       [](int, auto group) {
         ops::shift(values({5, 3}), 1, group);
         ops::shift_async(values({5, 3}, DType::bf16), -1, group).wait();
         ops::shift(values({5, 3}), ranks, group);  // its own
       }},
      {"mirror",
       [](int, auto group) {
         ops::mirror(values({5, 3}), 0, group);
         ops::mirror_async(values({6}), 1, group).wait();
       }},
      {"broadcast", [](int, auto group) { ops::broadcast(values({9, 3}), 1, group); }},
      {"messages", [](int rank, auto group) {
         if (rank == 0) {
           ops::send(values({9}), 2, 4, group);
         } else if (rank == 2) {
           ops::receive_(values({9}), 0, 4, group);
         }
         ops::broadcast(values({1}), 0, group);
       }}};
  return all;
}

}  // namespace

TEST_CASE("a program counts the bytes that each rank receives in each collective") {
  for (const auto& [name, body] : bodies()) {
    for (const std::string& difference : differences(name, body)) {
      CHECK(difference == "");
    }
  }
}

TEST_CASE("a program counts the boxes that a change of layout on two axes moves") {
  const Body exchanged = [](int, ops::GroupArgument) {
    const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
    const Layout from = Layout::make(mesh, {Shard(0), Shard(1)});
    const Layout to = Layout::make(mesh, {Shard(1), Shard(0)});
    const Dims shape{7, 5};
    const SpecHandle spec = Spec::make(from, shape, DType::f32);
    redistribute(from_local(values(local_shape(*spec)), from, shape), to);
  };
  for (const std::string& difference : differences("exchange", exchanged, 4)) {
    CHECK(difference == "");
  }
}

namespace {

struct GatherToArgs {
  std::int64_t root;
  ops::GroupArgument group;
};

/// A collective of which only the kind of its calls is declared.
const Op& gather_to = register_op<GatherToArgs>({
    .schema = "test_gather_to(x)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          const std::int64_t ranks = call.args<GatherToArgs>().group.size();
          out.push_back({{ranks * call.in[0].numel()}, call.in[0].dtype()});
        },
    .cpu =
        [](const Call& call, std::span<Tensor> out) {
          const auto args = call.args<GatherToArgs>();
          args.group.communicator()
              .issue(CallKind::gather, call.in[0].raw_data(), out[0].raw_data(), call.in[0].numel(),
                     call.in[0].dtype(), ReduceOp::sum, static_cast<int>(args.root))
              .wait();
        },
    .communicates = CallKind::gather,
    .moves_elements = true,
});

}  // namespace

TEST_CASE("an operator that declares a kind of call has the bytes of its form") {
  const Body gathered = [](int, ops::GroupArgument group) {
    call_one(gather_to, {values({6})}, GatherToArgs{1, group});
    call_one(gather_to, {values({4}, DType::bf16)}, GatherToArgs{2, group});
  };
  for (const std::string& difference : differences("gather", gathered)) {
    CHECK(difference == "");
  }
}

namespace {

/// What the plan of a redistribution says that a rank receives, and what each is seen to.
struct Priced {
  std::int64_t said = 0;
  std::vector<std::int64_t> seen = {};
};

Priced priced(int count, const std::function<DeviceMesh()>& make_mesh,
              const std::vector<Placement>& from, const std::vector<Placement>& to,
              const Dims& shape) {
  Priced result;
  result.seen.resize(static_cast<std::size_t>(count));
  collective::run_threads(count, [&](collective::World& world) {
    const DeviceMesh mesh = make_mesh();
    const Layout before = Layout::make(mesh, from);
    const Layout after = Layout::make(mesh, to);
    const SpecHandle spec = Spec::make(before, shape, DType::f32);
    const Tensor x = from_local(values(local_shape(*spec)), before, shape);
    Seen seen;
    {
      const collective::ObserverScope scope(seen);
      redistribute(x, after);
    }
    result.seen[static_cast<std::size_t>(world.rank())] = seen.bytes;
    if (world.rank() == 0) {
      for (const Step& step : plan_redistribute(before, after, shape, 4).steps) {
        result.said += step.bytes;
      }
    }
  });
  return result;
}

}  // namespace

TEST_CASE("a redistribution is priced by what the rank that receives most receives") {
  const std::vector<Placement> placements = {Replicate(), Shard(0), Shard(1), Partial(),
                                             Partial(ReduceOp::max)};
  const auto line = [] { return DeviceMesh::make({"a"}, {ranks}); };
  for (const Placement from : placements) {
    for (const Placement to : {Replicate(), Shard(0), Shard(1)}) {
      for (const Dims& shape : {Dims{6, 3}, Dims{7, 5}, Dims{2, 8}}) {
        const Priced found = priced(ranks, line, {from}, {to}, shape);
        INFO(to_string(from) << " -> " << to_string(to) << ", " << to_string(shape));
        CHECK(found.said == std::ranges::max(found.seen));
      }
    }
  }
  const auto square = [] { return DeviceMesh::make({"a", "b"}, {2, 2}); };
  const Priced exchanged =
      priced(4, square, {Shard(0), Shard(1)}, {Shard(1), Shard(0)}, Dims{7, 5});
  CHECK(exchanged.said == std::ranges::max(exchanged.seen));
  CHECK(exchanged.said > 0);
}
