// Steps of virtual shards: the bits of one rank on every number of ranks, also where it does not
// divide the shards, and where their number is not a power of two.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.optim;
import tessera.parallel;
import tessera.passes;
import tessera.program;
import tessera.tensor;

#include "layouts.hpp"
#include "net.hpp"
#include "replayed_run.hpp"
#include "support.hpp"

using namespace train_test;

namespace {

constexpr int steps = 4;

struct Result {
  std::vector<StepResult> steps;
  Named values;
};

Result trained(const DeviceMesh& mesh, const Layouts& layout, const Options& options,
               std::int64_t shards, bool captured) {
  set_seed(3);
  Run run(mesh, layout.styles, options);
  run.training.set_virtual_shards({.batch = shards});
  run.training.captured().set_enabled(captured);
  Result result;
  for (int i = 0; i < steps; ++i) {
    result.steps.push_back(run.step(shards));
  }
  if (captured) {
    check(run.training.captured().counts().replayed == steps - 2, "steps are replayed");
  }
  result.values = values_of(*run.net.model);
  return result;
}

void have_the_bits_of_one_rank(const std::vector<Layouts>& layouts, const Options& options,
                               std::int64_t shards) {
  Result expected;
  on_layout(layout_named("one rank"), [&](const DeviceMesh& mesh) {
    expected = trained(mesh, layout_named("one rank"), options, shards, false);
  });
  for (const Layouts& layout : layouts) {
    for (const bool captured : {false, true}) {
      INFO(layout.name << ", " << shards << " shards, captured " << captured);
      REQUIRE_NOTHROW(on_layout(layout, [&](const DeviceMesh& mesh) {
        const Result found = trained(mesh, layout, options, shards, captured);
        for (std::size_t i = 0; i < steps; ++i) {
          check(found.steps[i].loss == expected.steps[i].loss,
                "loss of step " + std::to_string(i + 1));
          check(found.steps[i].grad_norm == expected.steps[i].grad_norm,
                "gradient norm of step " + std::to_string(i + 1));
        }
        check(found.values == expected.values, "parameters");
      }));
    }
  }
}

std::vector<Layouts> many_layouts() {
  const parallel::StyleEntry replicate{"Replicate", "replicate", {"."}, "{}", ""};
  const parallel::StyleEntry sharded = fsdp({"blocks.*", "."});
  std::vector<Layouts> all = {{"one rank", {"shard"}, {1}, {sharded}}};
  for (std::int64_t ranks = 2; ranks <= 6; ++ranks) {
    all.push_back({"replicated " + std::to_string(ranks), {"replicate"}, {ranks}, {replicate}});
    all.push_back({"sharded " + std::to_string(ranks), {"shard"}, {ranks}, {sharded}});
  }
  all.push_back({"hybrid 2 x 2", {"replicate", "shard"}, {2, 2}, {replicate, sharded}});
  all.push_back({"hybrid 3 x 2", {"replicate", "shard"}, {3, 2}, {replicate, sharded}});
  return all;
}

}  // namespace

TEST_CASE("8 virtual shards have the bits of one rank on 1 to 6 ranks") {
  have_the_bits_of_one_rank(
      many_layouts(), {.net = {.tied = true, .dropout = 0.2}, .micro_rows = 1, .dtype = DType::f32},
      8);
}

TEST_CASE("6 virtual shards have the bits of one rank on 1 to 6 ranks") {
  have_the_bits_of_one_rank(many_layouts(), {.micro_rows = 1, .dtype = DType::f32}, 6);
}

TEST_CASE("an evaluation counts each virtual shard once") {
  std::vector<double> losses;
  const parallel::StyleEntry replicate{"Replicate", "replicate", {"."}, "{}", ""};
  for (const std::int64_t ranks : {1, 3}) {
    const Layouts layout{"replicated", {"replicate"}, {ranks}, {replicate}};
    double loss = 0;
    on_layout(layout, [&](const DeviceMesh& mesh) {
      set_seed(3);
      Run run(mesh, layout.styles, {.micro_rows = 1, .dtype = DType::f32});
      run.training.set_virtual_shards({.batch = 8});
      const double found = run.training.evaluate(2, {.rows = 8}, [&](const BatchPart& m) {
        const Tensor tokens = net_tokens(8, static_cast<int>(m.step));
        const Tensor part = from_local(ops::contiguous(ops::narrow(tokens, 0, m.first, m.rows)),
                                       run.net.plan.batch_layout(), Dims{ranks, 3});
        return ops::sum(ops::square((*run.net.model)(part)));
      });
      if (current_rank() == 0) {
        loss = found;
      }
    });
    losses.push_back(loss);
  }
  CHECK(losses[0] > 0);
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("virtual shards that ranks cannot share are refused") {
  const auto refusal = [](std::vector<std::string> axes, std::vector<std::int64_t> shape,
                          const VirtualShards& shards) {
    const parallel::StyleEntry replicate{"Replicate", axes.front(), {"."}, "{}", ""};
    std::vector<parallel::StyleEntry> styles = {replicate};
    if (axes.size() > 1) {
      styles.push_back(fsdp({"blocks.*", "."}));
    }
    const Layouts layout{"", std::move(axes), std::move(shape), styles};
    std::string text;
    on_layout(layout, [&](const DeviceMesh& mesh) {
      Run run(mesh, layout.styles, {.dtype = DType::f32});
      const std::string error = error_of([&] { run.training.set_virtual_shards(shards); });
      if (current_rank() == 0) {
        text = error;
      }
    });
    return text;
  };
  CHECK(contains(refusal({"replicate"}, {3}, {.batch = 2}),
                 "3 ranks cannot share the 2 virtual shards"));
  CHECK(contains(refusal({"replicate", "shard"}, {2, 3}, {.batch = 8}),
                 "3 ranks along the axes of the batch after 'replicate' cannot share the 8"));
  CHECK(contains(refusal({"replicate", "shard"}, {1, 2}, {.batch = 0}), "a step has 0 of them"));
  CHECK(contains(refusal({"replicate"}, {1}, {.batch = 8, .features = 3}),
                 "expected a power of two"));
  CHECK(refusal({"replicate", "shard"}, {2, 2}, {.batch = 8}) == "no error");
  CHECK(contains(refusal({"replicate", "shard"}, {2, 4}, {.batch = 9}), "cannot share the 9"));
}
