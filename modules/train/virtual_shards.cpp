// Steps whose bits do not depend on the layout: which layouts, and which rows.
module;
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :eager_steps;
import :micro_batches;

namespace tessera {
namespace {

constexpr const char* kThing = "virtual shards";

/// Errors (input): a style or a division of the model whose sums have an order of their own.
void check_styles(const parallel::ParallelPlan& plan) {
  if (plan.stages() != nullptr || plan.sequence_parts() > 1) {
    fail_input({.thing = kThing,
                .wrong = plan.stages() != nullptr ? "the model is divided into stages"
                                                  : "ranks split sequences",
                .expected = "styles whose sums have the same order in every layout"});
  }
  const auto& styles = plan.styles();
  const std::vector<parallel::StyleSummary> applied = plan.summary();
  for (std::size_t i = 0; i < styles.size(); ++i) {
    if (!styles[i]->facts().follows_virtual_shards) {
      fail_input({.thing = kThing,
                  .wrong = fmt::format("{} does not give the same bits on any number of ranks",
                                       applied[i].place),
                  .expected = "styles that follow virtual shards, such as Replicate and FSDP with "
                              "reduce_dtype = \"f32\""});
    }
  }
}

/// Errors (input): ranks that cannot share the virtual shards.
void check_mesh(const parallel::ParallelPlan& plan, const VirtualShards& shards) {
  const DeviceMesh& mesh = plan.mesh();
  const int parts = plan.batch_parts();
  if (parts > shards.batch) {
    fail_input({.thing = kThing,
                .wrong = fmt::format("{} ranks cannot share the {} virtual shards of a step", parts,
                                     shards.batch),
                .expected = "at most as many ranks along the batch",
                .advice = "a run that begins may have more of them (train.virtual_shards)"});
  }
  int outer = -1;  // the first axis of the batch that has several ranks
  int further = 1;
  for (const int axis : plan.batch_axes()) {
    if (outer >= 0) {
      further *= mesh.axis_size(axis);
    } else if (mesh.axis_size(axis) > 1) {
      outer = axis;
    }
  }
  if (!std::has_single_bit(static_cast<unsigned>(further)) || shards.batch % further != 0) {
    fail_input({.thing = kThing,
                .wrong = fmt::format("{} ranks along the axes of the batch after '{}' cannot share "
                                     "the {} virtual shards of a step",
                                     further, mesh.axis_name(outer), shards.batch),
                .expected = "a power of two that divides them",
                .advice = "only the first axis of the batch may have any number of ranks"});
  }
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const bool of_batch = std::ranges::find(plan.batch_axes(), axis) != plan.batch_axes().end();
    if (!of_batch && shards.features % mesh.axis_size(axis) != 0) {
      fail_input({.thing = kThing,
                  .wrong = fmt::format(
                      "the {} ranks of axis '{}' cannot share features that are "
                      "cut into {}",
                      mesh.axis_size(axis), mesh.axis_name(axis),
                      shards.features == 1 ? "no parts" : fmt::format("{} parts", shards.features)),
                  .advice = "a run that begins may cut them into more parts "
                            "(train.feature_shards, a power of two)"});
    }
  }
}

/// Error (input): a gradient is summed over an axis before the axes after it.
void check_order(const parallel::ParallelPlan& plan, std::span<const nn::ParameterPointer> all) {
  const DeviceMesh& mesh = plan.mesh();
  for (const nn::ParameterPointer& parameter : all) {
    const Layout& layout = parameter->value.layout();
    int sharded = -1;  // the first axis
    for (const int axis : plan.batch_axes()) {
      if (mesh.axis_size(axis) == 1) {
        continue;
      }
      if (!layout.placement(axis).is_replicate()) {
        sharded = sharded < 0 ? axis : sharded;
      } else if (sharded >= 0) {
        fail_input({.thing = kThing,
                    .wrong = fmt::format(
                        "'{}' is sharded along '{}' and Replicate along the axis '{}' after it, so "
                        "its gradient is summed in another order than on other meshes",
                        parameter->name, mesh.axis_name(sharded), mesh.axis_name(axis)),
                    .advice = "shard parameters along the last axis that splits the batch"});
      }
    }
  }
}

}  // namespace

std::string problem_of(const VirtualShards& shards) {
  if (shards.batch < 1) {
    return fmt::format("a step has {} of them (expected 1 or more)", shards.batch);
  }
  if (shards.features < 1 || !std::has_single_bit(static_cast<std::uint64_t>(shards.features))) {
    return fmt::format("features are cut into {} parts (expected a power of two)", shards.features);
  }
  return "";
}

RowDivision EagerSteps::shards_of(const StepBatch& batch) const {
  // A step that is only planned may have fewer of them.
  const bool planned = optimizer->parameters().front()->value.is_meta();
  const std::int64_t shard =
      planned && batch.micro_rows > 0 ? batch.micro_rows : batch.rows / shards_.batch;
  const std::int64_t parts = plan.batch_parts();
  if (shard < 1 || batch.rows % shard != 0 ||
      (batch.micro_rows != 0 && batch.micro_rows != shard) ||
      (!planned && batch.rows != shard * shards_.batch)) {
    fail({.thing = "training",
          .wrong = "a micro-batch is not one virtual shard of the rows",
          .expected = fmt::format("{} equal shards, and their rows or 0 as StepBatch::micro_rows",
                                  shards_.batch),
          .got = fmt::format("{} rows, micro_rows {}", batch.rows, batch.micro_rows)});
  }
  // Neighbouring shards are on neighbouring ranks, as sums over ranks come before those over
  // micro-batches.
  const std::int64_t of_all = shard * parts;  // in a micro-batch
  return {.part = (batch.rows + of_all - 1) / of_all * shard,
          .first = plan.batch_part() * shard,
          .micro = shard,
          .equal = true,
          .stride = of_all,
          .all = batch.rows};
}

void EagerSteps::set_virtual_shards(const VirtualShards& shards) {
  if (const std::string problem = problem_of(shards); !problem.empty()) {
    fail_input({.thing = kThing, .wrong = problem});
  }
  check_styles(plan);
  check_mesh(plan, shards);
  check_order(plan, optimizer->parameters());
  if (!optimizer->is_elementwise()) {
    fail_input({.thing = kThing,
                .wrong = "the optimizer computes with more than one element at a time, so that its "
                         "bits depend on how parameters are sharded",
                .advice = "use another one, such as adamw without state_bits = 8"});
  }
  for (const nn::ParameterPointer& parameter : optimizer->parameters()) {
    if (parameter->value.requires_grad() && size_of(parameter->value.dtype()) < 4) {
      fail_input({.thing = kThing,
                  .wrong = fmt::format("the gradient of '{}' has 16 bits, and sums of such are "
                                       "rounded at other places in every layout",
                                       parameter->name),
                  .advice = "store parameters in f32; they may compute in bf16"});
    }
  }
  shards_ = shards;
  order = in_a_tree(plan, optimizer->parameters(),
                    [this](std::span<const nn::ParameterPointer> all) { finisher.finish(all); });
}

}  // namespace tessera
