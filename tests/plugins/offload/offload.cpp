// What is kept in other places than the device's memory: that steps are the same bits, where
// tensors are, and what is refused.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;
using tessera::testing::Folder;

namespace {

using Entries = std::vector<parallel::StyleEntry>;

parallel::StyleEntry offload(const std::string& options, std::vector<std::string> on = {"."}) {
  return {.style = "Offload", .on = std::move(on), .options = options};
}

std::string to_file(const Folder& folder, const std::string& what = "") {
  return R"({"to": "file", "folder": ")" + folder.path().string() + "\"" +
         (what.empty() ? "" : R"(, "what": )" + what) + "}";
}

/// The values after three steps of AdamW, each of two micro-batches, the last gradients and state.
struct Trained {
  Named values;
  Named gradients;
  std::map<std::string, std::vector<double>> state;
};

Trained train(const DeviceMesh& mesh, const Entries& entries, const NetOptions& net = {}) {
  Planned run(std::make_shared<Net>(net), mesh, entries);
  optim::AdamWOptions settings;
  const auto optimizer = optim::adamw(nn::all_parameters(*run.model), settings);
  parallel::GradientFinisher finisher;
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    finisher.begin(optimizer->parameters());
    for (int batch = 0; batch < 2; ++batch) {
      const StepScope sync([&](StepContext& step) { step.sums_gradients = batch == 1; });
      backward(run.loss(net_tokens(4, 10 * step + batch)));
    }
    finisher.finish(optimizer->parameters());
    trained.gradients = gradients_of(*run.model);
    run.plan.before_optimizer();
    optimizer->step(1e-2);
    run.plan.after_optimizer();
    optimizer->zero_grad();
  }
  trained.values = values_of(*run.model);
  for (const auto& [name, tensor] : optimizer->state().tensors) {
    trained.state.emplace(name, to_doubles(full_tensor(detached(tensor))));
  }
  return trained;
}

/// Whether a mapping of this process is of a file in the folder and has this address.
bool is_in(const Folder& folder, const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    char* rest = nullptr;
    const std::uintptr_t first = std::strtoull(line.c_str(), &rest, 16);
    const std::uintptr_t last = std::strtoull(rest + 1, nullptr, 16);
    if (wanted >= first && wanted < last) {
      return line.find(folder.path().string()) != std::string::npos;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("steps with anything kept elsewhere are the same bits") {
  const Folder folder;
  const DeviceMesh pair = DeviceMesh::make({"shard"}, {2});
  const DeviceMesh square = DeviceMesh::make({"replicate", "shard"}, {2, 2});
  const auto with = [](const char* options) {
    return parallel::StyleEntry{"FSDP", "shard", {"blocks.*", "."}, options};
  };
  const parallel::StyleEntry replicate{"Replicate", "replicate", {"."}};
  const std::vector<std::pair<DeviceMesh, Entries>> layouts = {
      {pair, {with("{}")}},
      {pair, {with(R"({"accumulate": "whole", "reshard_after_forward": false})")}},
      {pair, {with(R"({"shard_dims": [{"on": ["**.up.weight"], "dim": 1}], "prefetch": 2})")}},
      {pair, {extend({"blocks.*.{up,down}"}, in_two_parts), with("{}")}},
      {square, {replicate, with("{}")}},
      {DeviceMesh::make({"shard"}, {4}), {with(R"({"reshard_ranks": 2})")}},
  };
  const std::vector<std::string> ways = {
      to_file(folder), to_file(folder, R"(["parameters"])"), to_file(folder, R"(["gradients"])"),
      to_file(folder, R"(["optimizer"])"), R"({"to": "memory"})"};
  for (const auto& [mesh, entries] : layouts) {
    for (const bool frozen : {false, true}) {
      const NetOptions net{
          .checkpointing = frozen,
          .dropout = 0.3,
          .frozen = frozen ? std::vector<std::string>{"blocks.1."} : std::vector<std::string>{}};
      on_ranks(mesh.size(), [&](int) {
        const Trained expected = train(mesh, entries, net);
        for (const std::string& way : ways) {
          Entries with_offload = entries;
          with_offload.insert(with_offload.begin(), offload(way));
          const Trained got = train(mesh, with_offload, net);
          check(got.values == expected.values, way + ": values");
          check(got.gradients == expected.gradients, way + ": gradients");
          check(got.state == expected.state, way + ": state");
        }
      });
    }
  }
  CHECK(std::filesystem::is_empty(folder.path().string()));
}

TEST_CASE("tensors are where the options say, and copies of shards go away") {
  const Folder folder;
  on_ranks(2, [&](int) {
    const DeviceMesh pair = DeviceMesh::make({"shard"}, {2});
    Planned run(std::make_shared<Net>(), pair,
                {offload(to_file(folder), {"blocks.*"}), fsdp({"blocks.*", "."})});
    const auto optimizer = optim::adamw(nn::all_parameters(*run.model));
    backward(run.loss(net_tokens(4, 1)));
    const auto in_file = [&](const Tensor& x) { return is_in(folder, x.local().raw_data()); };
    for (const nn::ParameterPointer& parameter : optimizer->parameters()) {
      const bool inside = parameter->name.starts_with("blocks.");
      check(in_file(parameter->value) == inside, "value of " + parameter->name);
      check(in_file(parameter->value.grad()) == inside, "gradient of " + parameter->name);
    }
    run.plan.before_optimizer();
    optimizer->step(1e-3);
    for (const auto& [name, tensor] : optimizer->state().tensors) {
      check(in_file(tensor) == contains(name, ".blocks."), "state " + name);
    }
    const std::int64_t left =
        memory_statistics().bytes[static_cast<std::size_t>(MemoryCategory::communication)];
    check(left == 0, "no whole value and no copy of a shard is left");
  });
}

TEST_CASE("a place that cannot be used is refused before the ranks start") {
  const Folder folder;
  const auto sharded = fsdp({"."});
  CHECK(contains(refusal({offload(R"({"to": "file"})"), sharded}), "option 'folder' is missing"));
  CHECK(contains(
      refusal({offload(R"({"to": "file", "folder": "/proc/self/status/here"})"), sharded}),
      "folder '/proc/self/status/here' cannot be used, as '/proc/self/status' is not a folder"));
  CHECK(contains(refusal({offload(R"({"to": "tape"})"), sharded}), "option 'to'"));
  CHECK(contains(refusal({offload(to_file(folder, R"(["activations"])")), sharded}),
                 R"(' must be "parameters" or "gradients" or "optimizer" (got "activations"))"));
  CHECK(contains(refusal({offload(to_file(folder, "[]")), sharded}), "option 'what' is empty"));
  CHECK(contains(refusal({offload(R"({"to": "memory", "folder": "/tmp"})"), sharded}),
                 "option 'folder' has no meaning"));
  CHECK(contains(refusal({offload(to_file(folder)), {"Replicate", "shard", {"."}, "{}", ""}}),
                 "no style keeps parameter 'embed.weight' in memory of its own"));
  CHECK(contains(refusal({sharded, offload(to_file(folder))}), "FSDP: must come after Offload"));
  CHECK(refusal({offload(to_file(folder, R"(["optimizer"])")),
                 {"Replicate", "shard", {"."}, "{}", ""}}) == "no error");
}
