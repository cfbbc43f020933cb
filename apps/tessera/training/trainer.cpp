
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/printable.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "llama_config.hpp"
#include "table.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;

#include "training/loss.hpp"
#include "training/setup.hpp"
#include "training/trainer.hpp"
#include "training/trial.hpp"

namespace tessera::app {
namespace {

/// The communication of a micro-batch: a row for each mesh axis.
std::vector<std::vector<std::string>> communication_rows(
    const std::vector<Communication>& communications) {
  struct Sum {
    std::map<std::string, int> operations;
    std::int64_t bytes = 0;
  };
  std::map<std::string, Sum> axes;
  for (const Communication& one : communications) {
    ++axes[one.axis].operations[one.operation];
    axes[one.axis].bytes += one.bytes;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [axis, sum] : axes) {
    std::vector<std::string> parts;
    for (const auto& [operation, times] : sum.operations) {
      parts.push_back(fmt::format("{} {}", times, operation));
    }
    rows.push_back({"communication",
                    fmt::format("on '{}': {}; {} per rank and micro-batch", axis, join_words(parts),
                                format_bytes(static_cast<std::uint64_t>(sum.bytes)))});
  }
  return rows;
}

Tensor row_tensor(const std::vector<std::int64_t>& values, std::int64_t rows,
                  std::int64_t columns) {
  return from_values(std::span<const std::int64_t>(values), {rows, columns});
}

}  // namespace

Trainer::Trainer(const Run& run) : run_(run), mesh_(make_mesh(run.config)) {
  set_seed(static_cast<std::uint64_t>(run.config.train.seed));
  model_ = make_model(run.shape, run.config);
  plan_ = std::make_unique<parallel::ParallelPlan>(*model_, mesh_, style_entries(run.config),
                                                   plugin::host());
  plan_->materialize();
  if (run.config.model.from.empty()) {
    nn::initialize(*model_);
  } else {
    StateDict weights;
    for (const auto& [name, parameter] : nn::named_parameters(*model_)) {
      weights.tensors.emplace(name, parameter->value);
    }
    load_weights(SafetensorsFolder(run.config.model.from), weights);
  }
  model_->set_activation_checkpointing(run.config.train.activation_checkpointing);
  parameters_ = nn::all_parameters(*model_);
  optimizer_ = make_optimizer(run.config, parameters_);
}

Tensor Trainer::loss_of(const Batch& batch, std::int64_t tokens) {
  return batch_loss(*model_, *plan_, row_tensor(batch.inputs, batch.rows, batch.seq_len),
                    row_tensor(batch.targets, batch.rows, batch.seq_len), tokens);
}

double Trainer::total(const Tensor& loss) const {
  const NoGrad no_grad;
  return redistribute(loss, Layout::replicated(mesh_)).local().item();
}

StepResult Trainer::step() {
  const TrainConfig& train = run_.config.train;
  const auto [part_rows, micro_rows] = batch_rows(train, plan_->batch_parts());
  const std::int64_t first = plan_->batch_part() * part_rows;
  const MemoryScope scope(MemoryCategory::activation);
  const RandomPosition start = random_position();
  Tensor loss;
  for (std::int64_t row = 0; row < part_rows; row += micro_rows) {
    const parallel::GradientSyncScope sync(row + micro_rows >= part_rows);
    const MicroBatchScope micro_batch(
        start,
        {.batch = train.batch, .parts = plan_->batch_parts(), .first = row, .rows = micro_rows});
    Tensor part;
    run_phase("forward", [&] {
      part = loss_of(run_.data->rows(done_, first + row, micro_rows),
                     train.batch * run_.config.data.seq_len);
    });
    backward(part);
    const NoGrad no_grad;
    const Tensor value = detached(part);
    loss = loss ? ops::add(loss, value) : value;
  }
  StepResult result;
  result.loss = total(loss);
  finisher_.finish(parameters_);
  result.grad_norm = optim::global_gradient_norm(parameters_);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    fail(fmt::format(
        "train: step {}: the loss is {} and the gradient norm {}; a smaller "
        "optimizer.lr or a longer optimizer.warmup may help; {}",
        done_ + 1, printable(result.loss), printable(result.grad_norm), last_checkpoint()));
  }
  result.lr = make_schedule(run_.config.optimizer, train.steps).at(done_);
  plan_->before_optimizer();
  optimizer_->step(result.lr, optim::clip_factor(result.grad_norm, train.clip_grad_norm));
  optimizer_->zero_grad();
  ++done_;
  return result;
}

std::optional<double> Trainer::validate() {
  const std::int64_t batches = run_.data->validation_batches();
  if (batches == 0) {
    return std::nullopt;
  }
  const NoGrad no_grad;
  const TrainConfig& train = run_.config.train;
  const auto [part_rows, micro_rows] = batch_rows(train, plan_->batch_parts());
  const std::int64_t first = plan_->batch_part() * part_rows;
  const nn::EvaluationScope evaluation(*model_);
  Tensor loss;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t row = 0; row < part_rows; row += micro_rows) {
      const Tensor part = loss_of(run_.data->validation_rows(b, first + row, micro_rows),
                                  batches * train.batch * run_.config.data.seq_len);
      loss = loss ? ops::add(loss, part) : part;
    }
  }
  const double value = total(loss);
  if (!std::isfinite(value)) {
    fail(fmt::format("train: after step {} the validation loss is {}; {}", done_, printable(value),
                     last_checkpoint()));
  }
  return value;
}

std::string memory_text(const MemoryStatistics& memory) {
  std::string text = format_bytes(static_cast<std::uint64_t>(memory.total_peak));
  for (int i = 0; i < memory_category_count; ++i) {
    const std::int64_t bytes = memory.peak[static_cast<std::size_t>(i)];
    if (bytes > 0) {
      text += fmt::format("{} {} {}", text.find(':') == std::string::npos ? ":" : ",",
                          name_of(static_cast<MemoryCategory>(i)),
                          format_bytes(static_cast<std::uint64_t>(bytes)));
    }
  }
  return text;
}

CheckedPlan check_plan(const Run& run) {
  const auto model = make_model(run.shape, run.config);
  const DeviceMesh mesh = make_mesh(run.config);
  const parallel::ParallelPlan plan(*model, mesh, style_entries(run.config), plugin::host());
  check_batch_division(run.config, plan.batch_parts());
  const Trial trial = try_step(*model, plan, run.config);
  std::vector<std::vector<std::string>> rows;
  for (const parallel::StyleSummary& style : plan.summary()) {
    rows.push_back(
        {"style", fmt::format("{} on '{}': {} modules, {} parameters", style.style, style.axis,
                              style.modules, format_count(static_cast<double>(style.parameters)))});
  }
  if (!run.config.train.freeze.empty()) {
    std::int64_t frozen = 0;
    std::int64_t all = 0;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
      all += parameter->value.numel();
      frozen += parameter->value.requires_grad() ? 0 : parameter->value.numel();
    }
    rows.push_back(
        {"frozen", fmt::format("{} of {} parameters", format_count(static_cast<double>(frozen)),
                               format_count(static_cast<double>(all)))});
  }
  rows.push_back({"memory", "per rank, estimated: " + memory_text(trial.memory)});
  for (auto& row : communication_rows(trial.communications)) {
    rows.push_back(std::move(row));
  }
  return {std::move(rows), trial.shared_bytes * static_cast<std::size_t>(mesh.size())};
}

}  // namespace tessera::app
