// Steps of a program's own that are recorded, and then replayed.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :capture_parts;
import :captured_step;
import :step_inputs;

namespace tessera {
namespace {

/// "" where there is one of them.
std::string prefix(std::size_t i, std::size_t count) {
  return count == 1 ? std::string() : fmt::format("{}.", i);
}

}  // namespace

std::string output_name(std::size_t i) { return fmt::format("output.{}", i); }

CapturedStep::CapturedStep(StepParts parts, Body body, const graph::ExecutionOptions& execution)
    : parts_(std::move(parts)),
      body_(std::move(body)),
      execution_(execution),
      calls_of_([this] { replayed_last_ = false; }) {
  graph::check(execution);
  calls_of_.set_comparing(execution.compares_recordings);
  if (execution.across_steps) {
    fail_input({.thing = "captured step",
                .wrong = "its update cannot be left to the next call, as callers see parameters "
                         "between two calls",
                .advice = "use Training"});
  }
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    finishers_.push_back(std::make_unique<parallel::GradientFinisher>());
  }
  std::set<const void*> seen;
  for (std::size_t m = 0; m < parts_.modules.size(); ++m) {
    const std::string before = prefix(m, parts_.modules.size());
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*parts_.modules[m])) {
      if (seen.insert(parameter.get()).second) {
        parameters_.emplace_back(before + parameter->name, parameter);
        inputs_[parameter.get()] = parameter_input(before + parameter->name);
      }
    }
    for (const nn::BufferPointer& buffer : nn::all_buffers(*parts_.modules[m])) {
      if (seen.insert(buffer.get()).second) {
        buffers_.emplace_back(before + buffer->name, buffer);
      }
    }
  }
}

CapturedStep::~CapturedStep() = default;

const Program* CapturedStep::program() const {
  return calls_of_.last() == nullptr ? nullptr : &calls_of_.last()->program();
}

void CapturedStep::release_memory() noexcept {
  calls_of_.release_memory();
  replayed_last_ = false;
}

StepVariables CapturedStep::variables_of(const StepNumbers& numbers) const {
  StepVariables variables;
  for (const auto& [name, value] : numbers.others) {
    variables.numbers["number." + name] = value;
  }
  variables.guards = numbers.guards;
  variables.counts["begun"] = calls_ + 1;
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    const std::string name = prefix(i, parts_.optimizers.size());
    variables.numbers[name + "lr"] = numbers.lr[i];
    variables.counts[name + "step"] = count_of(i, false).value();
  }
  variables.streams = random_state();
  return variables;
}

Number CapturedStep::lr_of(std::size_t optimizer, double lr, bool recorded) const {
  return recorded ? Number::variable(prefix(optimizer, parts_.optimizers.size()) + "lr", lr)
                  : Number(lr);
}

Count CapturedStep::count_of(std::size_t optimizer, bool recorded) const {
  const std::vector<std::int64_t> steps = parts_.optimizers[optimizer]->steps();
  const std::int64_t next = (steps.empty() ? 0 : *std::ranges::max_element(steps)) + 1;
  return recorded ? Count::variable(prefix(optimizer, parts_.optimizers.size()) + "step", next)
                  : Count(next);
}

StepInputs CapturedStep::state() const {
  StepInputs all;
  for (const auto& [name, parameter] : parameters_) {
    add_parameter(all, name, *parameter);
  }
  for (const auto& [name, buffer] : buffers_) {
    add_buffer(all, name, *buffer);
  }
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    add_state(all, prefix(i, parts_.optimizers.size()), *parts_.optimizers[i]);
  }
  add_values(all, added_, Role::transform_state);
  return all;
}

std::string CapturedStep::input_of(const nn::ParameterPointer& parameter) const {
  const auto found = inputs_.find(parameter.get());
  if (found == inputs_.end()) {
    fail({.thing = "captured step",
          .wrong = fmt::format("'{}' belongs to an optimizer and to none of the modules",
                               parameter->name),
          .advice = "name its module in StepParts::modules"});
  }
  return found->second;
}

void CapturedStep::update(std::size_t optimizer, double lr, Recorder* recorder) {
  optim::Optimizer& one = *parts_.optimizers[optimizer];
  finishers_[optimizer]->finish(one.parameters());
  for (parallel::ParallelPlan* plan : parts_.plans) {
    plan->before_optimizer();
  }
  const bool recorded = recorder != nullptr;
  const std::vector<std::size_t> updated =
      one.step(lr_of(optimizer, lr, recorded), 1, count_of(optimizer, recorded));
  if (recorded) {
    record_updates(*recorder, static_cast<int>(optimizer), updated, one.parameters(),
                   [&](const nn::ParameterPointer& parameter) { return input_of(parameter); });
  }
  for (parallel::ParallelPlan* plan : parts_.plans) {
    plan->after_optimizer();
  }
  one.zero_grad();
}

void CapturedStep::drop_gradients() noexcept {
  for (optim::Optimizer* optimizer : parts_.optimizers) {
    optimizer->zero_grad();
  }
  for (const auto& [name, parameter] : parameters_) {
    parameter->value.grad() = Tensor();
  }
}

Tensors CapturedStep::body(StepCall& call) {
  Tensors results;
  run_phase(name_of(Phase::step), [&] {
    for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
      finishers_[i]->begin(
          parts_.optimizers[i]->parameters(),
          call.recorder_ == nullptr ? Count(calls_ + 1) : Count::variable("begun", calls_ + 1));
    }
    results = body_(call);
    for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
      if (!call.updated_[i]) {  // sums that are under way are completed
        finishers_[i]->finish(parts_.optimizers[i]->parameters());
      }
    }
    for (Tensor& x : results) {
      x = detached(x);
    }
    for (parallel::ParallelPlan* plan : parts_.plans) {
      plan->before_optimizer();
    }
  });
  return results;
}

Tensors CapturedStep::take(const Tensors& inputs, const StepNumbers& numbers, Recorder* recorder) {
  const MemoryScope scope(MemoryCategory::activation);
  StepCall call(*this, inputs, numbers, recorder);
  Tensors results;
  if (recorder == nullptr) {
    results = body(call);
  } else {
    recorder->section(SectionKind::step, [&] {
      results = body(call);
      for (std::size_t i = 0; i < results.size(); ++i) {
        recorder->output(output_name(i), local_of(results[i]));
      }
    });
  }
  drop_gradients();
  ++calls_;
  replayed_last_ = false;
  return results;
}

Tensors CapturedStep::operator()(const Tensors& inputs, const StepNumbers& numbers) {
  if (numbers.lr.size() != parts_.optimizers.size()) {
    fail({.thing = "captured step",
          .wrong = "each optimizer needs a learning rate",
          .expected = fmt::format("{}", parts_.optimizers.size()),
          .got = fmt::format("{}", numbers.lr.size()),
          .advice = "pass StepNumbers{.lr = {...}}"});
  }
  try {
    return call(inputs, numbers);
  } catch (...) {
    replayed_last_ = false;
    drop_gradients();
    throw;
  }
}

}  // namespace tessera
