#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "config/config.hpp"
#include "llama_config.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;

#include "training/loss.hpp"
#include "training/setup.hpp"
#include "training/trial.hpp"

namespace tessera::app {
namespace {

/// Parameters and optimizer state, which exist before the first step.
void book_state(optim::Optimizer& optimizer) {
  for (const nn::ParameterPointer& parameter : optimizer.parameters()) {
    const Tensor& local = parameter->value.local();
    account_memory(
        MemoryCategory::parameter,
        occupied_bytes(static_cast<std::size_t>(local.numel()) * size_of(local.dtype())));
  }
  optimizer.prepare_state();
}

/// The buffers in which GradientFinisher sums gradients that are Partial. They stay, and the next
/// step's gradients are beside them.
std::vector<Tensor> book_sums(nn::LlamaForCausalLM& model) {
  const MemoryScope scope(MemoryCategory::gradient);
  std::vector<Tensor> buffers;
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    const Tensor& gradient = parameter->value.grad();
    const Layout& layout = parameter->value.layout();
    for (int axis = 0; gradient && axis < layout.ndim(); ++axis) {
      if (gradient.layout().placement(axis) == Partial() && layout.placement(axis).is_replicate()) {
        buffers.push_back(empty(gradient.local().shape(), gradient.dtype(), meta));
      }
    }
  }
  return buffers;
}

/// Forward and backward of a step; returns what the last micro-batch communicates.
std::vector<Communication> compute_gradients(nn::LlamaForCausalLM& model,
                                             const parallel::ParallelPlan& plan,
                                             const Config& config) {
  const TrainConfig& train = config.train;
  const MemoryScope activations(MemoryCategory::activation);
  const BatchRows rows = batch_rows(train, plan.batch_parts());
  const RandomPosition start = random_position();
  // The first micro-batch and the last one: those between them hold what the last one holds.
  for (std::int64_t first : {std::int64_t{0}, rows.part - rows.micro}) {
    const bool last = first + rows.micro == rows.part;
    const parallel::GradientSyncScope sync(last);
    const MicroBatchScope micro_batch(
        start,
        {.batch = train.batch, .parts = plan.batch_parts(), .first = first, .rows = rows.micro});
    const CommunicationReport report;
    const Tensor tokens = empty({rows.micro, config.data.seq_len}, DType::i64, meta);
    backward(batch_loss(model, plan, tokens, tokens, train.batch * config.data.seq_len));
    if (last) {
      return report.entries();
    }
  }
  return {};
}

/// What the rank keeps in memory that all ranks can reach: shards along an axis that splits the
/// batch, which are gathered before they are used, and the sums of GradientFinisher.
std::size_t shared_bytes(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                         const std::vector<Tensor>& sums) {
  const auto bytes_of = [](const Tensor& x) {
    return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  };
  std::size_t bytes = 0;
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    const Layout& layout = parameter->value.layout();
    const bool gathered = std::any_of(plan.batch_axes().begin(), plan.batch_axes().end(),
                                      [&](int axis) { return layout.placement(axis).is_shard(); });
    bytes += gathered ? bytes_of(parameter->value.local()) : 0;
  }
  for (const Tensor& sum : sums) {
    bytes += bytes_of(sum);
  }
  return bytes;
}

Trial step_on_meta(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
                   optim::Optimizer& optimizer, const Config& config) {
  const PlannedMemoryScope planned;
  book_state(optimizer);
  Trial trial;
  trial.communications = compute_gradients(model, plan, config);
  // What a step leaves behind is there while the next one runs.
  const std::vector<Tensor> buffers = book_sums(model);
  trial.shared_bytes = shared_bytes(model, plan, buffers);
  optimizer.zero_grad();
  compute_gradients(model, plan, config);
  trial.memory = memory_statistics();
  return trial;
}

}  // namespace

Trial try_step(nn::LlamaForCausalLM& model, const parallel::ParallelPlan& plan,
               const Config& config) {
  model.set_activation_checkpointing(config.train.activation_checkpointing);
  // Its errors are not the styles': made before what explains those.
  const auto optimizer = make_optimizer(config, nn::all_parameters(model));
  // On a thread of its own: its memory accounts, what it remembers of operators as rank 0, and the
  // numbers that dropout draws, go with it. The ranks that are forked afterwards would inherit
  // them.
  return std::async(std::launch::async,
                    [&] {
                      try {
                        return step_on_meta(model, plan, *optimizer, config);
                      } catch (const Error& error) {
                        throw plan.explained(error);
                      }
                    })
      .get();
}

}  // namespace tessera::app
