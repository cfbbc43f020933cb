// fully_shard by call, and control by hand of what it shards.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
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
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

DeviceMesh pair() { return DeviceMesh::make({"shard"}, {2}); }

}  // namespace

TEST_CASE("fully_shard along one axis and along two computes what one rank does") {
  const auto expected = plain(std::make_shared<Net>());
  backward(plain_loss(*expected, net_tokens(4, 1)));
  for (const DeviceMesh& mesh : {pair(), DeviceMesh::make({"replicate", "shard"}, {2, 2})}) {
    on_ranks(mesh.size(), [&](int) {
      Sharded run(mesh, in_blocks());
      const Layout& layout = nn::all_parameters(run.model)[0]->value.layout();
      check(layout.placement(mesh.ndim() - 1) == Shard(0), "sharded along the last axis");
      check(mesh.ndim() == 1 || layout.placement(0).is_replicate(), "replicated along the first");
      backward(run.loss(1));
      parallel::GradientFinisher().finish(nn::all_parameters(run.model));
      check(difference(gradients_of(run.model), gradients_of(*expected)) < 1e-11, "gradients");
    });
  }
}

TEST_CASE("fully_shard comes after the styles that it is given") {
  const auto expected = plain(std::make_shared<Net>());
  backward(plain_loss(*expected, net_tokens(4, 1)));
  on_ranks(4, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
    parallel::FullyShardOptions options = in_blocks();
    options.axis = "shard";
    options.styles = {{"ColwiseParallel", "tensor", {"blocks.*.up"}},
                      {"RowwiseParallel", "tensor", {"blocks.*.down"}}};
    Sharded run(mesh, options);
    const nn::Module& up = *run.model.children()[1].second->children()[2].second;
    check(to_string(up.parameter("weight")->value.layout().placements()) == "[Shard(0), Shard(0)]",
          "both axes split the weight");
    backward(run.loss(1));
    parallel::GradientFinisher().finish(nn::all_parameters(run.model));
    check(difference(gradients_of(run.model), gradients_of(*expected)) < 1e-11, "gradients");
  });
}

TEST_CASE("whole values are gathered and freed by hand") {
  const auto expected = plain(std::make_shared<Net>());
  on_ranks(2, [&](int) {
    Sharded run(pair(), in_blocks());
    parallel::ShardedParameters& parameters = run.handle.parameters();
    check(!computed_head(run.model).defined(), "sharded at first");
    parameters.unshard("");
    const Tensor whole = computed_head(run.model);
    check(whole.layout().placement(0).is_replicate(), "whole");
    check(to_doubles(whole.local()) ==
              to_doubles(expected->children().back().second->parameter("weight")->value),
          "the values of one rank");
    const nn::Module& up = *run.model.children()[1].second->children()[2].second;
    check(!up.parameter("weight")->computed.defined(), "other groups stay sharded");
    parameters.reshard("");
    check(!computed_head(run.model).defined(), "sharded again");
    check(error_of([&] { to_doubles(whole.local()); }) != "no error", "its memory is gone");
    parameters.unshard("");
    backward(run.loss(1));  // uses what is there
    check(!computed_head(run.model).defined(), "backward frees it");
    const std::string error = error_of([&] { parameters.unshard("blocks.7"); });
    check(error ==
              "FSDP: it gathers no parameters of module 'blocks.7' together (expected one of "
              "'blocks.0', 'blocks.1' and ''); let a pattern of its groups match the module",
          error);
  });
}

TEST_CASE("whole values stay after forward while the handle says so") {
  on_ranks(2, [](int) {
    Sharded run(pair(), in_blocks());
    const auto kept = [&] {
      const Tensor loss = run.loss(1);
      const bool whole = run.model.children()[1]
                             .second->children()[2]
                             .second->parameter("weight")
                             ->computed.defined();
      backward(loss);
      return whole;
    };
    check(!kept(), "freed after forward");
    run.handle.parameters().set_reshard_after_forward(false);
    check(kept(), "kept");
    run.handle.parameters().set_reshard_after_forward(true);
    check(!kept(), "freed again");
  });
}

TEST_CASE("without sync gradients stay whole until the next backward with sync") {
  const auto expected = plain(std::make_shared<Net>());
  for (const int seed : {1, 2}) {
    backward(plain_loss(*expected, net_tokens(4, seed)));
  }
  on_ranks(2, [&](int) {
    Sharded run(pair(), in_blocks());
    const nn::ParameterPointer head = run.model.children().back().second->parameter("weight");
    run.handle.parameters().set_gradient_sync(false);
    backward(run.loss(1));
    check(head->value.grad().layout().placement(0).is_partial(), "whole terms");
    run.handle.parameters().set_gradient_sync(true);
    backward(run.loss(2));
    check(head->value.grad().layout().placement(0) == Shard(0), "reduced");
    check(difference(gradients_of(run.model), gradients_of(*expected)) < 1e-11,
          "gradients of both");
  });
}
