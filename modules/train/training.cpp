module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :eager_steps;
import :micro_batches;
import :step_plan;

namespace tessera {

Training::Training(nn::Module& model, parallel::ParallelPlan& plan,
                   std::unique_ptr<optim::Optimizer> optimizer, const optim::Schedule& schedule,
                   double max_norm)
    : steps_(std::make_unique<EagerSteps>(model, plan, std::move(optimizer), schedule,
                                          [this] { return checkpoints_->last(); })),
      captured_(std::make_unique<CapturedSteps>(*steps_)),
      evaluation_(std::make_unique<CapturedEvaluation>(*steps_)),
      checkpoints_(std::make_unique<TrainingCheckpoints>(*steps_, *captured_)) {
  set_clipping({.max_norm = max_norm});
}

Training::~Training() = default;

void Training::set_clipping(const optim::Clipping& clipping) {
  clipping.check();
  steps_->clipping = clipping;
}

void Training::set_loss_scaling(const optim::GradScalerOptions& options) {
  steps_->scaler.emplace(options);
  steps_->set_scale();
}

void Training::set_virtual_shards(const VirtualShards& shards) {
  steps_->set_virtual_shards(shards);
}

void Training::set_update_guard(UpdateGuard guard) { steps_->update_guard = std::move(guard); }

RowDivision Training::division(const StepBatch& batch) const { return steps_->rows_of(batch); }

const optim::GradScaler* Training::scaler() const {
  return steps_->scaler ? &*steps_->scaler : nullptr;
}

StepResult Training::step(const StepBatch& batch, const LossSum& loss_sum) {
  require(!captured_->enabled(),
          "training: a step whose loss is one function cannot be replayed; pass StepFunctions");
  BatchPart now;
  return step(batch, {.rows =
                          [&](const BatchPart& part) {
                            now = part;
                            return Tensors();
                          },
                      .loss_sum = [&](const Tensors&) { return loss_sum(now); }});
}

StepResult Training::step(const StepBatch& batch, const StepFunctions& functions) {
  const bool by_tokens = steps_->schedule.unit == optim::ScheduleUnit::tokens;
  if (batch.tokens < (by_tokens ? 1 : 0)) {
    fail({.thing = "training",
          .wrong = by_tokens ? "the schedule counts tokens, and a step has none"
                             : "the number of a step's tokens is negative",
          .expected = by_tokens ? "at least 1" : "at least 0",
          .got = fmt::format("{}", batch.tokens),
          .advice = "set StepBatch::tokens"});
  }
  const std::vector<std::uint64_t> versions = steps_->objects.versions();
  try {
    if (captured_->enabled()) {
      return captured_->step(batch, functions);
    }
    StepPlan of_step = steps_->plan_of(batch, functions.guards);
    return steps_->take(batch, functions, of_step);
  } catch (const Error& error) {
    captured_->abandon();
    steps_->optimizer->zero_grad();
    steps_->objects.rethrow_with_changes(error, versions);
  } catch (...) {
    captured_->abandon();
    steps_->optimizer->zero_grad();
    throw;
  }
}

void Training::set_planned_states(std::shared_ptr<StageStates> planned) {
  steps_->order->set_planned(std::move(planned));
}

void Training::add_model(nn::Module& model) { steps_->objects.add(model); }

double Training::evaluate(std::int64_t batches, const StepBatch& batch, const LossSum& loss_sum) {
  captured_->finish_updates();
  captured_->release_memory();
  BatchPart now;
  return steps_
      ->evaluate(batches, batch,
                 {.rows =
                      [&](const BatchPart& part) {
                        now = part;
                        return Tensors();
                      },
                  .loss_sum = [&](const Tensors&) { return loss_sum(now); }})
      .loss;
}

Evaluation Training::evaluate(std::int64_t batches, const StepBatch& batch,
                              const StepFunctions& functions) {
  captured_->finish_updates();
  captured_->release_memory();
  if (evaluation_->has_program()) {
    return evaluation_->evaluate(batches, batch, functions);
  }
  return steps_->evaluate(batches, batch, functions);
}

double Training::total(double mine) const { return steps_->total(mine); }

std::int64_t Training::done() const { return steps_->done; }
std::int64_t Training::tokens() const { return steps_->tokens; }
std::int64_t Training::skipped() const { return steps_->skipped; }

optim::Optimizer& Training::optimizer() {
  captured_->finish_updates();
  return *steps_->optimizer;
}

nn::Module& Training::model() {
  captured_->finish_updates();
  return steps_->model;
}

const parallel::ParallelPlan& Training::plan() const { return steps_->plan; }

std::size_t shared_bytes(const parallel::ParallelPlan& plan,
                         std::span<const nn::ParameterPointer> parameters) {
  std::size_t bytes = 0;
  for (const nn::ParameterPointer& parameter : parameters) {
    const Layout& layout = parameter->value.layout();
    const bool gathered = std::ranges::any_of(
        plan.batch_axes(), [&](int axis) { return layout.placement(axis).is_shard(); });
    const Tensor& local = parameter->value.local();
    bytes += gathered ? static_cast<std::size_t>(local.numel()) * size_of(local.dtype()) : 0;
  }
  return bytes;
}

std::size_t bytes_elsewhere(const optim::Optimizer& optimizer) {
  const auto bytes_of = [](const Tensor& x) {
    const Tensor& local = local_of(x);
    return static_cast<std::size_t>(local.numel()) * size_of(local.dtype());
  };
  const StateDict state = optimizer.state();
  std::size_t bytes = 0;
  for (const nn::ParameterPointer& parameter : optimizer.parameters()) {
    const auto& places = parameter->attached<nn::MemoryPlaces>();
    bytes += places.value ? bytes_of(parameter->value) : 0;
    bytes += places.gradient && parameter->value.requires_grad() ? bytes_of(parameter->value) : 0;
    for (const auto& [name, tensor] : state.tensors) {
      bytes += places.state && name.ends_with("." + parameter->name) ? bytes_of(tensor) : 0;
    }
  }
  return bytes;
}

}  // namespace tessera
