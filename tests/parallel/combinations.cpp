// Every combination of FSDP's options with what else a step may use: gradients and the values after
// two steps are those of one plain device.
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

using Frozen = std::vector<std::string>;
using Entries = std::vector<parallel::StyleEntry>;

struct Recipe {
  NetOptions net;
  int micro_batches = 1;
  bool sync_always = false;  // else only at the last micro-batch
};

std::string to_string(const Recipe& recipe) {
  std::string text = std::to_string(recipe.micro_batches) + " micro-batches";
  text += recipe.sync_always ? ", each synced" : "";
  text += recipe.net.tied ? ", tied" : "";
  text += recipe.net.checkpointing ? ", checkpointing" : "";
  text += recipe.net.dropout > 0 ? ", dropout" : "";
  for (const std::string& pattern : recipe.net.frozen) {
    text += ", frozen " + pattern;
  }
  return text;
}

std::vector<Recipe> all_recipes() {
  std::vector<Recipe> recipes;
  for (const Frozen& frozen : {Frozen{}, Frozen{"blocks.0.up.weight"}, Frozen{"blocks.1."}}) {
    for (const bool tied : {false, true}) {
      for (const bool checkpointing : {false, true}) {
        for (const double dropout : {0.0, 0.4}) {
          const NetOptions net{tied, checkpointing, dropout, frozen};
          recipes.push_back({net, 1, false});
          recipes.push_back({net, 3, false});
          recipes.push_back({net, 2, true});
        }
      }
    }
  }
  return recipes;
}

struct Meshed {
  const char* name;
  DeviceMesh mesh;
  Entries entries;
};

/// FSDP over two and four ranks, in groups of a block or in one; sharded within pairs of replicas.
std::vector<Meshed> all_meshes() {
  std::vector<Meshed> meshes;
  const auto add = [&](const char* name, const DeviceMesh& mesh, const Entries& entries) {
    meshes.push_back({name, mesh, entries});
  };
  for (const bool reshard : {true, false}) {
    const auto blocks = fsdp({"blocks.*", "."}, reshard);
    add(reshard ? "2 ranks" : "2 ranks, kept", DeviceMesh::make({"shard"}, {2}), {blocks});
    add(reshard ? "4 ranks" : "4 ranks, kept", DeviceMesh::make({"shard"}, {4}), {blocks});
    add(reshard ? "2 x 2 ranks" : "2 x 2 ranks, kept",
        DeviceMesh::make({"replicate", "shard"}, {2, 2}),
        {{"Replicate", "replicate", {"."}, "{}", ""}, blocks});
  }
  add("2 ranks, one group", DeviceMesh::make({"shard"}, {2}), {fsdp({"."})});
  const auto with = [](const std::string& options,
                       std::vector<std::string> on = {"blocks.*", "."}) {
    return parallel::StyleEntry{"FSDP", "shard", std::move(on), options};
  };
  const std::string columns =
      R"("shard_dims": [{"on": ["**.{up,down}.weight", "embed.weight", "head.weight"], "dim": 1}])";
  add("4 ranks, kept by pairs", DeviceMesh::make({"shard"}, {4}),
      {with(R"({"reshard_ranks": 2})")});
  add("2 ranks, columns", DeviceMesh::make({"shard"}, {2}), {with("{" + columns + "}")});
  add("4 ranks, columns, kept by pairs", DeviceMesh::make({"shard"}, {4}),
      {with("{" + columns + R"(, "reshard_ranks": 2, "accumulate": "whole"})")});
  add("2 ranks, some ignored, values left after backward", DeviceMesh::make({"shard"}, {2}),
      {with(
          R"({"ignore": ["blocks.0.up.bias", "embed.weight"], "reshard_after_backward": false})")});
  add("2 ranks, embedding and head together", DeviceMesh::make({"shard"}, {2}),
      {with(R"({"together": [{"on": ["embed", "head"]}], "missing": "zeros"})",
            {"blocks.*", "embed", "head", "."})});
  const auto in_parts = extend({"blocks.*.{up,down}", "head"}, in_two_parts);
  add("2 ranks, gathered in two parts", DeviceMesh::make({"shard"}, {2}),
      {in_parts, fsdp({"blocks.*", "."})});
  add("4 ranks, columns, in two parts, kept by pairs", DeviceMesh::make({"shard"}, {4}),
      {in_parts, with("{" + columns + R"(, "reshard_ranks": 2})")});
  parallel::StyleEntry over_all =
      with(R"({"shard_dims": [{"on": ["**.up.weight", "embed.weight", "head.weight"], "dim": 1}],)"
           R"( "shard_over": "all", "ignore": ["**.bias"], "prefetch": 2})");
  over_all.axis = {"outer", "shard"};
  add("3 x 2 ranks, over both axes", DeviceMesh::make({"outer", "shard"}, {3, 2}), {over_all});
  return meshes;
}

struct Outcome {
  std::vector<Named> gradients;  // of each step
  Named values;                  // after the last
};

/// Two steps of gradient descent by hand.
Outcome train(const Recipe& recipe, nn::Module& model,
              const std::function<Tensor(const Tensor& tokens)>& loss) {
  Outcome outcome;
  const std::vector<nn::ParameterPointer> parameters = nn::all_parameters(model);
  parallel::GradientFinisher finisher;
  for (const int number : {0, 1}) {
    if (number == 1) {
      finisher.begin(parameters);  // sums are issued in backward
    }
    for (int batch = 0; batch < recipe.micro_batches; ++batch) {
      const StepScope sync([&](StepContext& step) {
        step.sums_gradients = recipe.sync_always || batch + 1 == recipe.micro_batches;
      });
      backward(loss(net_tokens(4, 10 * number + batch)));
    }
    finisher.finish(parameters);
    for (const nn::ParameterPointer& p : parameters) {
      const Tensor& gradient = p->value.grad();
      check(!gradient || gradient.spec() == p->value.spec(),
            "layout of the gradient of " + p->name);
    }
    outcome.gradients.push_back(gradients_of(model));
    const NoGrad no_grad;
    for (const nn::ParameterPointer& p : parameters) {
      if (p->value.grad()) {
        ops::add_(p->value, p->value.grad(), -1e-3);
      }
    }
    clear_gradients(model);
  }
  outcome.values = values_of(model);
  return outcome;
}

}  // namespace

TEST_CASE("FSDP's steps are one device's in every combination of options") {
  const std::vector<Recipe> recipes = all_recipes();
  std::vector<Outcome> expected;
  for (const Recipe& recipe : recipes) {
    const auto model = plain(std::make_shared<Net>(recipe.net));
    expected.push_back(
        train(recipe, *model, [&](const Tensor& tokens) { return plain_loss(*model, tokens); }));
    std::size_t trained = 0;
    for (const nn::ParameterPointer& p : nn::all_parameters(*model)) {
      trained += p->value.requires_grad() ? 1 : 0;
    }
    CHECK(expected.back().gradients[1].size() == trained);
    CHECK(trained == 10U - (recipe.net.tied ? 1U : 0U) -
                         (recipe.net.frozen.empty()             ? 0U
                          : recipe.net.frozen[0] == "blocks.1." ? 4U
                                                                : 1U));
  }
  for (const Meshed& where : all_meshes()) {
    INFO(where.name);
    on_ranks(where.mesh.size(), [&](int) {
      for (std::size_t i = 0; i < recipes.size(); ++i) {
        // Four ranks take a third of them, with one, two and three micro-batches in turn.
        if (where.mesh.size() > 2 && (i + i / 3) % 3 != 0) {
          continue;
        }
        Planned run(std::make_shared<Net>(recipes[i].net), where.mesh, where.entries);
        const Outcome got =
            train(recipes[i], *run.model, [&](const Tensor& tokens) { return run.loss(tokens); });
        const std::string what = where.name + (": " + to_string(recipes[i]));
        for (const std::size_t number : {0, 1}) {
          check(difference(got.gradients[number], expected[i].gradients[number]) < 1e-10,
                what + ": gradients of step " + std::to_string(number));
        }
        check(difference(got.values, expected[i].values) < 1e-10, what + ": values");
      }
    });
  }
}
