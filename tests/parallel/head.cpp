// Logits in parts under the styles: losses and gradients of whole logits on one rank.
#include <cstdint>
#include <map>
#include <memory>
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
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using Entries = std::vector<parallel::StyleEntry>;
using Values = std::map<std::string, std::vector<double>>;

constexpr std::int64_t batch = 4;
constexpr std::int64_t tokens = 10;

nn::DecoderShape shape_of(bool tied) {
  return {.vocab = 40,
          .dim = 16,
          .layers = 1,
          .heads = 4,
          .kv_heads = 2,
          .ffn_dim = 24,
          .tie_embeddings = tied,
          .logit_softcap = 2,
          .standard_deviation = 0.4};
}

Tensor rows_of(std::int64_t factor, std::int64_t ignored) {
  std::vector<std::int64_t> values(batch * tokens);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    values[i] = place % 7 == ignored ? -100 : place * factor % 40;
  }
  return from_values(std::span<const std::int64_t>(values), {batch, tokens});
}

/// The loss, the losses of tokens and all gradients, in full.
Values computed(const DeviceMesh& mesh, const Entries& entries, bool tied, std::int64_t head_rows) {
  nn::DecoderLM model(shape_of(tied));
  model.set_head_rows(head_rows);
  parallel::ParallelPlan plan(model, mesh, entries, shipped_styles());
  plan.materialize();
  set_seed(5);
  nn::initialize(model);
  const auto placed = [&](const Tensor& rows) { return distribute(rows, plan.batch_layout()); };
  const Tensor ids = placed(rows_of(11, -1));
  const Tensor targets = placed(rows_of(17, 3));
  Values values;
  {
    const NoGrad no_grad;
    values["tokens"] = to_doubles(full_tensor(model.token_losses(ids, targets)));
  }
  const Tensor loss = model.loss_sum(ids, targets);
  values["loss"] = to_doubles(full_tensor(detached(loss)));
  backward(loss);
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    values[parameter->name] = to_doubles(full_tensor(parameter->value.grad()));
  }
  return values;
}

/// Styles of each layout, and the mesh's shape by the names of its axes.
struct Layouts {
  const char* name;
  std::vector<std::string> axes;
  Dims shape;
  Entries entries;
};

Entries joined(Entries a, const Entries& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Entries replicate = {{.style = "Replicate", .axis = "data", .on = {"."}}};
const Entries fsdp = {{.style = "FSDP", .axis = "shard", .on = {"model.layers.*", "."}}};
// The head is gathered on its own.
const Entries fsdp_head = {
    {.style = "FSDP", .axis = "shard", .on = {"model.layers.*", "lm_head", "."}}};
const Entries vocabulary = {{.style = "ColwiseParallel", .axis = "tensor", .on = {"lm_head"}},
                            {.style = "LossParallel", .axis = "tensor", .on = {"loss"}}};
const Entries sequence = {{.style = "SequenceParallel", .axis = "tensor", .on = {"model.norm"}},
                          {.style = "ColwiseParallel",
                           .axis = "tensor",
                           .on = {"lm_head"},
                           .options = "{\"input\": \"Shard(1)\"}"},
                          {.style = "LossParallel", .axis = "tensor", .on = {"loss"}}};

}  // namespace

TEST_CASE("logits in parts give losses and gradients of whole logits under the styles") {
  const std::vector<Layouts> layouts = {
      {"Replicate", {"data"}, {2}, replicate},
      {"FSDP", {"shard"}, {2}, fsdp},
      {"FSDP with the head apart", {"shard"}, {2}, fsdp_head},
      {"vocabulary", {"tensor"}, {2}, vocabulary},
      {"vocabulary and sequence", {"tensor"}, {3}, sequence},
      {"vocabulary and FSDP", {"shard", "tensor"}, {2, 2}, joined(vocabulary, fsdp)}};
  for (const bool tied : {false, true}) {
    Values expected;
    on_ranks(1, [&](int) { expected = computed(DeviceMesh::make({"rank"}, {1}), {}, tied, 0); });
    for (const Layouts& layout : layouts) {
      const bool splits_head = layout.axes.back() == "tensor";
      if (tied && (splits_head || layout.name == std::string("FSDP with the head apart"))) {
        continue;  // the embedding would have to be split alike
      }
      for (const std::int64_t rows : {1, 9, 1000}) {
        INFO(layout.name << (tied ? ", tied, " : ", ") << rows << " rows");
        Values got;
        on_ranks(static_cast<int>(layout.shape.product()), [&](int rank) {
          const Values own =
              computed(DeviceMesh::make(layout.axes, layout.shape), layout.entries, tied, rows);
          if (rank == 0) {
            got = own;
          }
        });
        REQUIRE(got.size() == expected.size());
        for (const auto& [name, values] : expected) {
          INFO(name);
          CHECK(difference(got.at(name), values) < 1e-5);
        }
      }
    }
  }
}

TEST_CASE("logits that are gathered are no logits in parts") {
  on_ranks(2, [](int) {
    Entries gathered = vocabulary;
    gathered[0].options = R"({"output": "Replicate"})";
    gathered.pop_back();
    const std::string error =
        error_of([&] { computed(DeviceMesh::make({"tensor"}, {2}), gathered, false, 4); });
    check(contains(error,
                   "module 'lm_head': its logits are brought into another layout before the loss"),
          error);
  });
}
