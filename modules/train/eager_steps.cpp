module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tessera/printable.hpp>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :capture_parts;
import :eager_steps;
import :micro_batches;
import :step_plan;

namespace tessera {
namespace {

/// The rows of a micro-batch, which are inputs where the step is recorded.
Tensors rows_for(const StepPlan& plan, const MicroPart& part, const StepFunctions& functions) {
  if (plan.recorder() == nullptr) {
    return functions.rows(part.batch);
  }
  Tensors given;
  plan.recorder()->pause([&] { given = functions.rows(part.batch); });
  StepInputs all;
  add_rows(all, static_cast<int>(part.number), given);
  record_inputs(*plan.recorder(), all);
  return given;
}

}  // namespace

EagerSteps::EagerSteps(nn::Module& trained, parallel::ParallelPlan& applied,
                       std::unique_ptr<optim::Optimizer> updater,
                       const optim::Schedule& lr_schedule,
                       std::function<std::string()> last_checkpoint)
    : model(trained),
      plan(applied),
      optimizer(std::move(updater)),
      schedule(lr_schedule),
      last_checkpoint_(std::move(last_checkpoint)) {
  schedule.check();
  order = plan.stages() == nullptr ? one_after_the_other(plan) : by_stages(model, plan);
  objects.add(model);
  objects.add(*optimizer);
}

void EagerSteps::set_scale() {
  if (!scale_input) {
    const std::vector<nn::ParameterPointer>& all = optimizer->parameters();
    scale_input = full({}, scale(), DType::f32, all.empty() ? cpu : all.front()->value.device());
  } else {
    ops::fill_(scale_input, scale());
  }
}

void RowDivision::each(std::int64_t step, const std::function<void(const MicroPart&)>& body) const {
  for (std::int64_t number = 0; number < micro_batches(); ++number) {
    body(at(step, number));
  }
}

MicroPart RowDivision::at(std::int64_t step, std::int64_t number) const {
  // A rank for which no virtual shard is left computes the last one.
  return {.batch = {.step = step,
                    .first = std::min(first + number * stride, all - micro),
                    .rows = micro},
          .number = number,
          .last = number + 1 == micro_batches()};
}

LeafRange RowDivision::shards(std::int64_t number) const {
  return {.first = number * stride / micro,
          .count = (std::min(all, (number + 1) * stride) - number * stride) / micro};
}

RowDivision EagerSteps::rows_of(const StepBatch& batch) const {
  if (batch.rows < 1) {
    fail({.thing = "training",
          .wrong = "a step has no rows",
          .expected = "at least 1",
          .got = fmt::format("{}", batch.rows)});
  }
  if (!(batch.weight > 0) || !std::isfinite(batch.weight)) {
    fail({.thing = "training",
          .wrong = batch.weight == 0
                       ? "no token counts, so there is no loss to divide by their number"
                       : "the number that losses are divided by is not one",
          .expected = "a StepBatch::weight of more than 0",
          .got = fmt::format("{}", printable(batch.weight)),
          .advice = "leave such a batch out, or look at what masks its targets"});
  }
  if (shards_.batch > 0) {
    return shards_of(batch);
  }
  const SpecHandle whole = Spec::make(plan.row_layout(), {batch.rows}, DType::i64);
  const std::int64_t part = local_shape(*whole)[0];
  const std::int64_t parts = plan.batch_parts();
  RowDivision rows{.part = part,
                   .first = local_offset(*whole)[0],
                   .micro = part,
                   .equal = batch.rows % parts == 0,
                   .stride = part,
                   .all = batch.rows};
  if (batch.micro_rows != 0) {
    if (!rows.equal || batch.micro_rows < 1 || part % batch.micro_rows != 0) {
      fail({.thing = "training",
            .wrong = fmt::format("the rows cannot be divided equally into micro-batches of {}",
                                 batch.micro_rows),
            .expected = fmt::format("a multiple of {} parts of the batch times {}", parts,
                                    batch.micro_rows),
            .got = fmt::format("{} rows", batch.rows)});
    }
    rows.micro = rows.stride = batch.micro_rows;
  }
  return rows;
}

namespace {

/// Without a gradient.
Tensors scaled_sums(const Tensors& sums, const Number& factor) {
  const NoGrad no_grad;
  Tensors all;
  for (const Tensor& sum : sums) {
    all.push_back(ops::mul_scalar(sum, factor));
  }
  return all;
}

/// The hidden states of a stage that does not end the model.
std::function<Tensor(const Tensors&)> states_of(const StepFunctions& functions) {
  return [&functions](const Tensors& given) {
    require(static_cast<bool>(functions.states),
            "training: the steps of a model in stages need StepFunctions::states");
    Tensor states;
    run_phase(name_of(Phase::forward), [&] { states = functions.states(given); });
    return states;
  };
}

void check_scalar(const Tensor& loss) {
  if (!loss || loss.numel() != 1 || !loss.is_distributed()) {
    fail({.thing = "training",
          .wrong = "the loss is not a distributed scalar",
          .expected = "the sum of the losses of the rows",
          .got = !loss                   ? "no tensor"
                 : loss.is_distributed() ? to_string(*loss.spec())
                                         : "a plain tensor of shape " + to_string(loss.shape()),
          .advice = "make the batch with from_local(rows, plan.batch_layout())"});
  }
}

}  // namespace

void WholeSums::record(Recorder& recorder) const {
  recorder.output(loss_output, loss);
  for (std::size_t i = 0; i < measured.size(); ++i) {
    recorder.output(measured_output(i), measured[i]);
  }
}

std::vector<double> WholeSums::measured_values() const {
  std::vector<double> values;
  for (const Tensor& sum : measured) {
    values.push_back(sum.item());
  }
  return values;
}

std::vector<double> WholeSums::measured_in(Executor& executor) {
  std::vector<double> values;
  while (executor.program().outputs.contains(measured_output(values.size()))) {
    values.push_back(executor.output(measured_output(values.size())).item());
  }
  return values;
}

StepSums EagerSteps::checked(StepSums sums) {
  check_scalar(sums.loss);
  for (const Tensor& sum : sums.measured) {
    check_scalar(sum);
  }
  return sums;
}

WholeSums EagerSteps::whole(const StepSums& sums) const {
  StepSums all = summed_on_mesh(sums, plan);
  return {.loss = std::move(all.loss), .measured = std::move(all.measured)};
}

double EagerSteps::total(double mine) const {
  const NoGrad no_grad;
  Layout layout = Layout::replicated(plan.mesh());
  for (const int axis : plan.batch_axes()) {
    layout = layout.with_placement(axis, Partial());
  }
  return whole(from_local(full({}, mine, DType::f64), layout)).loss.item();
}

double EagerSteps::lr_of(const StepBatch& batch) const {
  return schedule.unit == optim::ScheduleUnit::tokens ? schedule.at(tokens, batch.tokens)
                                                      : schedule.at(done);
}

const char* EagerSteps::norm_output() const { return tessera::norm_output(clipping.norm); }

StepPlan EagerSteps::plan_of(const StepBatch& batch, const StepGuards& guards,
                             Recorder* recorder) const {
  StepPlan plan_of_step(recorder, guards);
  plan_of_step.know(BeforeStep{.done = done,
                               .updates = done - skipped,  // a skipped step has none
                               .weight = batch.weight,
                               .max_value = clipping.max_value,
                               .scaler_factor = scale()});
  return plan_of_step;
}

BeforeUpdate EagerSteps::before_update(const StepResult& result) const {
  return {.lr = result.lr,
          .grad_norm = result.grad_norm,
          .max_norm = clipping.max_norm,
          .scaler_factor = scale()};
}

StepResult EagerSteps::checked(const StepBatch& batch, double loss, double power,
                               std::vector<double> measured) {
  StepResult result{.loss = loss,
                    .grad_norm = optim::norm_of_power(power, clipping.norm) / scale(),
                    .lr = lr_of(batch),
                    .measured = std::move(measured)};
  const bool skips = scaler || clipping.nonfinite == optim::NonFinite::skip;
  result.skipped = skips && std::isfinite(result.loss) && !std::isfinite(result.grad_norm);
  if (!result.skipped && update_guard && update_guard(result)) {
    result.refused = result.skipped = true;
  }
  if (!result.skipped && (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))) {
    const char* const advice = done > skipped
                                   ? "a smaller learning rate or a longer warm-up may help"
                                   : "no update was made before, so the data or the first values "
                                     "of the parameters are the cause, not the learning rate";
    fail(fmt::format("training: step {}: the loss is {} and the gradient norm {}; {}; {}", done + 1,
                     printable(result.loss), printable(result.grad_norm), advice,
                     last_checkpoint_()));
  }
  return result;
}

void EagerSteps::count_step(const StepBatch& batch, const StepResult& result) {
  if (scaler && !result.refused) {  // the factor is not what was wrong
    scaler->update(result.skipped);
    set_scale();
  }
  skipped += result.skipped ? 1 : 0;
  ++done;
  tokens += batch.tokens;
}

StepResult EagerSteps::take(const StepBatch& batch, const StepFunctions& functions,
                            StepPlan& of_step) {
  const RowDivision rows = rows_of(batch);
  const MemoryScope scope(MemoryCategory::activation);
  WholeSums sums;
  Tensor power;
  finisher.begin(optimizer->parameters(), of_step.count(step_numbers::steps_begun));
  of_step.section(SectionKind::gradients, [&] {
    sums = gradients(batch, rows, functions, of_step);
    finisher.finish(optimizer->parameters());
    order->finish(optimizer->parameters());
    power = order->norm_power(optimizer->parameters(), clipping.norm);
    nn::end_step(model);
    if (Recorder* const recorder = of_step.recorder()) {
      sums.record(*recorder);
      recorder->output(norm_output(), power);
    }
  });
  const StepResult result = checked(batch, sums.loss.item(), power.item(), sums.measured_values());
  // Apart from the update, as a skipped step frees what was gathered too.
  of_step.section(SectionKind::free, [&] { plan.before_optimizer(); });
  if (!result.skipped) {
    of_step.know(before_update(result));
    of_step.section(SectionKind::update, [&] { update(of_step); });
  }
  optimizer->zero_grad();
  count_step(batch, result);
  return result;
}

WholeSums EagerSteps::gradients(const StepBatch& batch, const RowDivision& rows,
                                const StepFunctions& functions, const StepPlan& of_step) {
  // Virtual shards are placed so that a micro-batch's rows follow each other in the step.
  const std::int64_t parts = shards_.batch > 0  ? 1
                             : batch.parts == 0 ? plan.batch_parts()
                                                : batch.parts;
  const std::int64_t of_each = rows.micro * plan.batch_parts() / parts;
  const StepScope scope([&](StepContext& step) { step.feature_blocks = shards_.features; });
  const auto loss_of = [&](const Tensors& given) {
    MicroLoss loss;
    run_phase(name_of(Phase::forward), [&] {
      const Number loss_share = of_step.number(step_numbers::loss_share);
      loss.sums = checked(functions.loss_sum(given));
      const Tensor share = ops::mul_scalar(loss.sums.loss, loss_share);
      loss.sums.measured = scaled_sums(loss.sums.measured, loss_share);
      loss.root = share;
      if (scaler) {
        loss.root = ops::mul(share, from_local(ops::cast(scale_input, share.dtype()),
                                               Layout::replicated(plan.mesh())));
      }
      loss.sums.loss = detached(share);
    });
    return loss;
  };
  const StepSums sums = order->gradients(
      {.step = done,
       .count = rows.micro_batches(),
       .guards = text_of(of_step.guards()),
       .start = random_position(),
       .place = [&](std::int64_t number) -> std::optional<MicroBatch> {
         if (!rows.equal) {
           return std::nullopt;  // rows in unequal parts are the whole step's
         }
         return MicroBatch{.batch = batch.rows,
                           .parts = parts,
                           .first = number * of_each,
                           .rows = of_each,
                           .padding = shards_.batch > 0 ? rows.padding(number) : 0};
       },
       .shards = [&](std::int64_t number) { return rows.shards(number); },
       .rows =
           [&](std::int64_t number) { return rows_for(of_step, rows.at(done, number), functions); },
       .loss = loss_of,
       .states = states_of(functions)});
  StepSums all = order->whole(sums);
  return {.loss = std::move(all.loss), .measured = std::move(all.measured)};
}

void EagerSteps::update(const StepPlan& of_step) {
  const std::vector<nn::ParameterPointer>& parameters = optimizer->parameters();
  if (clipping.max_value > 0) {
    optim::clamp_gradients(parameters, of_step.number(step_numbers::max_value));
  }
  const std::vector<std::size_t> updated =
      optimizer->step(of_step.number(step_numbers::lr), of_step.number(step_numbers::grad_scale),
                      of_step.count(step_numbers::updates));
  if (Recorder* const recorder = of_step.recorder()) {
    objects.record_updates(*recorder, 0, updated);
  }
  plan.after_optimizer();
}

Evaluation EagerSteps::evaluate(std::int64_t batches, const StepBatch& batch,
                                const StepFunctions& functions) {
  const NoGrad no_grad;
  const RowDivision rows = rows_of(batch);
  const nn::EvaluationScope evaluation(model);
  const StepScope scope([&](StepContext& step) { step.feature_blocks = shards_.features; });
  if (batches == 0) {
    return {};
  }
  // All of them are one chain of micro-batches: stages go from one batch to the next at once.
  const std::int64_t each = rows.micro_batches();
  const double share = step_numbers::loss_share.of({.weight = batch.weight});
  const StepSums sums =
      order->evaluation({.step = done,
                         .count = batches * each,
                         .guards = text_of(functions.guards),
                         .place = [](std::int64_t) { return std::optional<MicroBatch>(); },
                         .shards = [&](std::int64_t number) { return rows.shards(number % each); },
                         .rows =
                             [&](std::int64_t number) {
                               return functions.rows(rows.at(number / each, number % each).batch);
                             },
                         .loss =
                             [&](const Tensors& given) {
                               MicroLoss loss;
                               loss.sums = checked(functions.loss_sum(given));
                               loss.sums.loss = ops::mul_scalar(loss.sums.loss, share);
                               loss.sums.measured = scaled_sums(loss.sums.measured, share);
                               return loss;
                             },
                         .states = states_of(functions)});
  StepSums all = order->whole(sums);
  const WholeSums summed{.loss = std::move(all.loss), .measured = std::move(all.measured)};
  return checked(Evaluation{.loss = summed.loss.item(), .measured = summed.measured_values()});
}

Evaluation EagerSteps::checked(Evaluation evaluation) {
  if (!std::isfinite(evaluation.loss)) {
    fail({.thing = "training",
          .wrong = fmt::format("after step {} the validation loss is {}", done,
                               printable(evaluation.loss)),
          .advice = last_checkpoint_()});
  }
  return evaluation;
}

}  // namespace tessera
