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
import tessera.record;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :capture_parts;
import :step_inputs;

namespace tessera {

Training::Training(nn::Module& model, parallel::ParallelPlan& plan,
                   std::unique_ptr<optim::Optimizer> optimizer, const optim::Schedule& schedule,
                   double max_norm)
    : model_(model), plan_(plan), optimizer_(std::move(optimizer)), schedule_(schedule) {
  schedule_.check();
  set_clipping({.max_norm = max_norm});
}

void Training::set_clipping(const optim::Clipping& clipping) {
  clipping.check();
  clipping_ = clipping;
}

void Training::set_loss_scaling(const optim::GradScalerOptions& options) {
  scaler_.emplace(options);
  set_scale();
}

void Training::set_scale() {
  if (!scale_) {
    const std::vector<nn::ParameterPointer>& all = optimizer_->parameters();
    scale_ = full({}, scale(), DType::f32, all.empty() ? cpu : all.front()->value.device());
  } else {
    ops::fill_(scale_, scale());
  }
}

void Training::Rows::each(std::int64_t step,
                          const std::function<void(const MicroPart&)>& body) const {
  const std::int64_t count = micro_batches();
  for (std::int64_t number = 0; number < count; ++number) {
    body({.batch = {.step = step, .first = first + number * micro, .rows = micro},
          .number = number,
          .last = number + 1 == count});
  }
}

Training::Rows Training::rows_of(const StepBatch& batch) const {
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
  const SpecHandle whole = Spec::make(plan_.batch_layout(), {batch.rows}, DType::i64);
  const std::int64_t part = local_shape(*whole)[0];
  const std::int64_t parts = plan_.batch_parts();
  Rows rows{.part = part,
            .first = local_offset(*whole)[0],
            .micro = part,
            .equal = batch.rows % parts == 0};
  if (batch.micro_rows != 0) {
    if (!rows.equal || batch.micro_rows < 1 || part % batch.micro_rows != 0) {
      fail({.thing = "training",
            .wrong = fmt::format("the rows cannot be divided equally into micro-batches of {}",
                                 batch.micro_rows),
            .expected = fmt::format("a multiple of {} parts of the batch times {}", parts,
                                    batch.micro_rows),
            .got = fmt::format("{} rows", batch.rows)});
    }
    rows.micro = batch.micro_rows;
  }
  return rows;
}

Tensor Training::checked(Tensor loss) const {
  if (!loss || loss.numel() != 1 || !loss.is_distributed()) {
    fail({.thing = "training",
          .wrong = "the loss is not a distributed scalar",
          .expected = "the sum of the losses of the rows",
          .got = !loss                   ? "no tensor"
                 : loss.is_distributed() ? to_string(*loss.spec())
                                         : "a plain tensor of shape " + to_string(loss.shape()),
          .advice = "make the batch with from_local(rows, plan.batch_layout())"});
  }
  return loss;
}

Tensor Training::whole(const Tensor& loss) const {
  const NoGrad no_grad;
  return redistribute(loss, Layout::replicated(plan_.mesh())).local();
}

double Training::read(const Tensor& loss) const { return whole(loss).item(); }

double Training::total(double mine) const {
  const NoGrad no_grad;
  Layout layout = Layout::replicated(plan_.mesh());
  for (const int axis : plan_.batch_axes()) {
    layout = layout.with_placement(axis, Partial());
  }
  return read(from_local(full({}, mine, DType::f64), layout));
}

StepResult Training::step(const StepBatch& batch, const LossSum& loss_sum) {
  require(!replays_,
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
  const bool by_tokens = schedule_.unit == optim::ScheduleUnit::tokens;
  if (batch.tokens < (by_tokens ? 1 : 0)) {
    fail({.thing = "training",
          .wrong = by_tokens ? "the schedule counts tokens, and a step has none"
                             : "the number of a step's tokens is negative",
          .expected = by_tokens ? "at least 1" : "at least 0",
          .got = fmt::format("{}", batch.tokens),
          .advice = "set StepBatch::tokens"});
  }
  try {
    return replays_ ? record_step(batch, functions) : take_step(batch, functions, nullptr);
  } catch (...) {
    replayed_last_ = false;
    if (!captures_.empty()) {
      captures_.back().parts[captures_.back().running].executor->abandon();
    }
    optimizer_->zero_grad();
    throw;
  }
}

double Training::lr_of(const StepBatch& batch) const {
  return schedule_.unit == optim::ScheduleUnit::tokens ? schedule_.at(tokens_, batch.tokens)
                                                       : schedule_.at(done_);
}

double Training::grad_scale(const StepResult& result) const {
  return optim::clip_factor(result.grad_norm, clipping_.max_norm) / scale();
}

const char* Training::norm_output() const {
  return clipping_.norm == 2 ? "squared_norm" : "norm_power";
}

StepResult Training::checked(const StepBatch& batch, double loss, double power) {
  StepResult result{.loss = loss,
                    .grad_norm = optim::norm_of_power(power, clipping_.norm) / scale(),
                    .lr = lr_of(batch)};
  const bool skips = scaler_ || clipping_.nonfinite == optim::NonFinite::skip;
  result.skipped = skips && std::isfinite(result.loss) && !std::isfinite(result.grad_norm);
  if (!result.skipped && (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))) {
    const char* const advice = done_ > skipped_
                                   ? "a smaller learning rate or a longer warm-up may help"
                                   : "no update was made before, so the data or the first values "
                                     "of the parameters are the cause, not the learning rate";
    fail(fmt::format("training: step {}: the loss is {} and the gradient norm {}; {}; {}",
                     done_ + 1, printable(result.loss), printable(result.grad_norm), advice,
                     last_checkpoint()));
  }
  return result;
}

void Training::count_step(const StepBatch& batch, bool was_skipped) {
  if (scaler_) {
    scaler_->update(was_skipped);
    set_scale();
  }
  skipped_ += was_skipped ? 1 : 0;
  ++done_;
  tokens_ += batch.tokens;
}

StepResult Training::take_step(const StepBatch& batch, const StepFunctions& functions,
                               Recorder* recorder) {
  const Rows rows = rows_of(batch);
  const std::vector<nn::ParameterPointer>& parameters = optimizer_->parameters();
  const MemoryScope scope(MemoryCategory::activation);
  const RandomPosition start = random_position();
  const auto section = [&](const char* name, const std::function<void()>& body) {
    recorder == nullptr ? body() : recorder->section(name, body);
  };
  // What differs from step to step, so that what is recorded follows from it.
  const auto number = [&](const char* name, double value) {
    return recorder == nullptr ? Number(value) : Number::variable(name, value);
  };
  const auto count = [&](const char* name, std::int64_t value) {
    return recorder == nullptr ? Count(value) : Count::variable(name, value);
  };
  Tensor loss;
  Tensor power;
  finisher_.begin(parameters, count("begun", done_ + 1));
  section("gradients", [&] {
    rows.each(done_, [&](const MicroPart& part) {
      const parallel::GradientSyncScope sync(part.last);
      std::optional<MicroBatchScope> scope_of_rows;  // rows in unequal parts are the whole step's
      if (rows.equal) {
        const std::int64_t parts = batch.parts == 0 ? plan_.batch_parts() : batch.parts;
        const std::int64_t of_each = rows.micro * plan_.batch_parts() / parts;
        scope_of_rows.emplace(start, MicroBatch{.batch = batch.rows,
                                                .parts = parts,
                                                .first = part.number * of_each,
                                                .rows = of_each});
      }
      Tensors given;
      if (recorder == nullptr) {
        given = functions.rows(part.batch);
      } else {
        recorder->pause([&] { given = functions.rows(part.batch); });
        for (std::size_t i = 0; i < given.size(); ++i) {
          recorder->input(fmt::format("rows.{}.{}", part.number, i), given[i]);
        }
      }
      Tensor share;
      Tensor scaled;
      run_phase("forward", [&] {
        share = ops::mul_scalar(checked(functions.loss_sum(given)),
                                number("loss_scale", 1.0 / batch.weight));
        scaled = share;
        if (scaler_) {
          scaled = ops::mul(share, from_local(ops::cast(scale_, share.dtype()),
                                              Layout::replicated(plan_.mesh())));
        }
      });
      backward(scaled);
      const NoGrad no_grad;
      const Tensor value = detached(share);
      loss = loss ? ops::add(loss, value) : value;
    });
    loss = whole(loss);
    finisher_.finish(parameters);
    power = optim::gradient_norm_power(parameters, clipping_.norm);
    if (recorder != nullptr) {
      recorder->output("loss", loss);
      recorder->output(norm_output(), power);
    }
  });
  const StepResult result = checked(batch, loss.item(), power.item());
  const double grad_scale = this->grad_scale(result);
  // Apart from the update, as a skipped step frees what was gathered too.
  section("free", [&] { plan_.before_optimizer(); });
  if (result.skipped) {
    optimizer_->zero_grad();
    count_step(batch, true);
    return result;
  }
  section("update", [&] {
    if (clipping_.max_value > 0) {
      optim::clamp_gradients(parameters, number("max_value", clipping_.max_value * scale()));
    }
    const std::vector<std::size_t> updated =
        optimizer_->step(number("lr", result.lr), number("grad_scale", grad_scale),
                         count("step", done_ - skipped_ + 1));
    if (recorder != nullptr) {
      record_updates(*recorder, 0, updated, parameters, input_of);
    }
    plan_.after_optimizer();
  });
  optimizer_->zero_grad();
  count_step(batch, false);
  return result;
}

double Training::evaluate(std::int64_t batches, const StepBatch& batch, const LossSum& loss_sum) {
  finish_updates();
  const NoGrad no_grad;
  const Rows rows = rows_of(batch);
  const nn::EvaluationScope evaluation(model_);
  rest_captures();
  Tensor loss;
  for (std::int64_t b = 0; b < batches; ++b) {
    rows.each(b, [&](const MicroPart& m) {
      const Tensor part = ops::mul_scalar(checked(loss_sum(m.batch)), 1.0 / batch.weight);
      loss = loss ? ops::add(loss, part) : part;
    });
  }
  return checked_evaluation(loss ? read(loss) : 0);
}

double Training::checked_evaluation(double loss) {
  if (!std::isfinite(loss)) {
    fail({.thing = "training",
          .wrong = fmt::format("after step {} the validation loss is {}", done_, printable(loss)),
          .advice = last_checkpoint()});
  }
  return loss;
}

std::size_t Training::shared_bytes() const {
  std::size_t bytes = 0;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    const Layout& layout = parameter->value.layout();
    const bool gathered = std::ranges::any_of(
        plan_.batch_axes(), [&](int axis) { return layout.placement(axis).is_shard(); });
    const Tensor& local = parameter->value.local();
    bytes += gathered ? static_cast<std::size_t>(local.numel()) * size_of(local.dtype()) : 0;
  }
  return bytes;
}

std::size_t Training::bytes_elsewhere() const {
  const auto bytes_of = [](const Tensor& x) {
    const Tensor& local = local_of(x);
    return static_cast<std::size_t>(local.numel()) * size_of(local.dtype());
  };
  const StateDict state = optimizer_->state();
  std::size_t bytes = 0;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    const nn::MemoryPlaces& places = parameter->places;
    bytes += places.value ? bytes_of(parameter->value) : 0;
    bytes += places.gradient && parameter->value.requires_grad() ? bytes_of(parameter->value) : 0;
    for (const auto& [name, tensor] : state.tensors) {
      bytes += places.state && name.ends_with("." + parameter->name) ? bytes_of(tensor) : 0;
    }
  }
  return bytes;
}

}  // namespace tessera
