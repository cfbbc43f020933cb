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
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :captured_step;
import :step_inputs;

namespace tessera {
namespace {

constexpr const char* section = "step";

/// Styles learn the order of their groups, and optimizers make their state.
constexpr std::int64_t calls_before = 2;
constexpr std::size_t most_captures = 4;
constexpr std::size_t most_kinds = 16;

const Tensor& local_of(const Tensor& x) { return x.is_distributed() ? x.local() : x; }

std::string input_name(std::size_t i) { return fmt::format("input.{}", i); }
std::string output_name(std::size_t i) { return fmt::format("output.{}", i); }

/// "" where there is one of them.
std::string prefix(std::size_t i, std::size_t count) {
  return count == 1 ? std::string() : fmt::format("{}.", i);
}

}  // namespace

/// A program, and what its results are for the caller.
struct CapturedStep::Capture {
  std::string kind;
  std::unique_ptr<Executor> executor;
  std::vector<SpecHandle> layouts;                // of the results; null: not distributed
  std::vector<std::vector<std::string>> updated;  // parameters, by optimizer
};

struct CapturedStep::Kind {
  std::int64_t eager = 0;
  std::optional<Recording> first = {};
};

CapturedStep::CapturedStep(StepParts parts, Body body, const graph::ExecutionOptions& execution)
    : parts_(std::move(parts)), body_(std::move(body)), execution_(execution) {
  graph::check(execution);
  if (execution.across_steps) {
    fail_input({.thing = "captured step",
                .wrong = "its update cannot be left to the next call, as callers see parameters "
                         "between two calls",
                .advice = "use Training::set_replay"});
  }
  if (!execution.transforms.empty()) {
    fail_input({.thing = "captured step",
                .wrong = "its first calls are taken as they are, so transformations cannot be in "
                         "every one",
                .advice = "use Training::set_program"});
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
  return captures_.empty() ? nullptr : &captures_.back()->executor->program();
}

void CapturedStep::rest() noexcept {
  for (const std::unique_ptr<Capture>& capture : captures_) {
    capture->executor->rest();
  }
  replayed_last_ = false;
}

std::string CapturedStep::kind_of(const Tensors& inputs) const {
  std::string text;
  for (const Tensor& x : inputs) {
    text += x.is_distributed() ? to_string(*x.spec())
                               : fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape()));
    text += ' ';
  }
  for (const optim::Optimizer* optimizer : parts_.optimizers) {
    const std::vector<std::int64_t> steps = optimizer->steps();
    const std::int64_t most = steps.empty() ? 0 : *std::ranges::max_element(steps);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool trained = optimizer->parameters()[i]->value.requires_grad();
      text += trained ? fmt::format("{},", most - steps[i]) : "-,";
    }
    text += ' ';
  }
  return text;
}

StepVariables CapturedStep::variables_of(const StepNumbers& numbers) const {
  StepVariables variables;
  for (const auto& [name, value] : numbers.others) {
    variables.numbers["number." + name] = value;
  }
  variables.counts["begun"] = calls_ + 1;
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    variables = rehearsed(std::move(variables), i, numbers.lr[i], 0);
  }
  variables.streams = random_state();
  return variables;
}

StepVariables CapturedStep::rehearsed(StepVariables variables, std::size_t optimizer, double lr,
                                      std::int64_t more_steps) const {
  const optim::Optimizer& one = *parts_.optimizers[optimizer];
  const std::string name = prefix(optimizer, parts_.optimizers.size());
  for (const double scale : one.lr_scales()) {
    variables.numbers[name + (scale == 1 ? "lr" : fmt::format("lr*{}", scale))] = lr * scale;
  }
  for (const auto& [number, value] : one.numbers(lr, 1, more_steps)) {
    variables.numbers[name + number] = value;
  }
  const std::vector<std::int64_t> steps = one.steps();
  variables.counts[name + "step"] =
      (steps.empty() ? 0 : *std::ranges::max_element(steps)) + 1 + more_steps;
  return variables;
}

std::map<std::string, Tensor> CapturedStep::state() const {
  std::map<std::string, Tensor> all;
  for (const auto& [name, parameter] : parameters_) {
    add_parameter(all, name, *parameter);
  }
  for (const auto& [name, buffer] : buffers_) {
    add_buffer(all, name, *buffer);
  }
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    add_state(all, prefix(i, parts_.optimizers.size()), *parts_.optimizers[i]);
  }
  return all;
}

std::vector<std::string> CapturedStep::updated(const std::vector<std::string>& written,
                                               const optim::Optimizer& optimizer) const {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters_) {
    if (std::ranges::find(written, parameter_input(name)) != written.end() &&
        std::ranges::find(optimizer.parameters(), parameter) != optimizer.parameters().end()) {
      names.push_back(parameter->name);
    }
  }
  return names;
}

void CapturedStep::update(std::size_t optimizer, double lr, Recorder* recorder) {
  optim::Optimizer& one = *parts_.optimizers[optimizer];
  finishers_[optimizer]->finish(one.parameters());
  for (parallel::ParallelPlan* plan : parts_.plans) {
    plan->before_optimizer();
  }
  if (recorder != nullptr) {
    // Numbers that no call has: what does not follow them is a constant.
    const double other_lr = lr * 1.7320508 + 1e-3;
    constexpr std::int64_t later = 1'000'003;
    recorder->rehearse(rehearsed(recorded_, optimizer, other_lr, later),
                       [&] { one.rehearse(other_lr, 1, later); });
  }
  one.step(lr);
  for (parallel::ParallelPlan* plan : parts_.plans) {
    plan->after_optimizer();
  }
  one.zero_grad();
}

void CapturedStep::drop_gradients() noexcept {
  for (optim::Optimizer* optimizer : parts_.optimizers) {
    optimizer->zero_grad();
  }
}

Tensors CapturedStep::body(StepCall& call) {
  Tensors results;
  run_phase("step", [&] {
    for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
      finishers_[i]->begin(parts_.optimizers[i]->parameters());
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
    recorder->section(section, [&] {
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

Tensors CapturedStep::record(const Tensors& inputs, const StepNumbers& numbers, Kind& kind,
                             const std::string& name) {
  for (optim::Optimizer* optimizer : parts_.optimizers) {
    optimizer->prepare_state();
  }
  recorded_ = variables_of(numbers);
  Recorder recorder;
  std::map<std::string, MemoryCategory> categories;
  for (const auto& [own, parameter] : parameters_) {
    categories[parameter_input(own)] = category_of_parameter(*parameter);
  }
  for (const auto& [input, tensor] : state()) {
    const auto category = categories.find(input);
    recorder.input(input, tensor,
                   category == categories.end() ? MemoryCategory::other : category->second);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    recorder.input(input_name(i), local_of(inputs[i]));
  }
  const Tensors results = take(inputs, numbers, &recorder);
  Recording recording = recorder.finish(recorded_);
  ++counts_.recorded;
  if (!kind.first) {
    kind.first = std::move(recording);
    return results;
  }
  auto capture = std::make_unique<Capture>();
  capture->kind = name;
  Program program = program_of(*std::exchange(kind.first, std::nullopt), recording);
  capture->updated.resize(parts_.optimizers.size());
  const std::vector<std::string> written = program.written(section);
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    capture->updated[i] = updated(written, *parts_.optimizers[i]);
  }
  for (const Tensor& x : results) {
    capture->layouts.push_back(x.is_distributed() ? x.spec() : SpecHandle());
  }
  if (captures_.size() >= most_captures) {
    captures_.erase(captures_.begin());  // its memory is free before the new one's is taken
  }
  capture->executor = graph::make_executor(std::move(program), execution_);
  captures_.push_back(std::move(capture));
  kinds_.erase(name);
  ++counts_.captured;
  return results;
}

Tensors CapturedStep::replay(Capture& capture, const Tensors& inputs,
                             const StepVariables& variables) {
  if (!replayed_last_) {  // what styles derive from parameters is an input of the program
    for (parallel::ParallelPlan* plan : parts_.plans) {
      plan->after_optimizer();
    }
  }
  const MemoryScope scope(MemoryCategory::activation);
  std::map<std::string, Tensor> given = state();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    given.emplace(input_name(i), local_of(inputs[i]));
  }
  Executor& executor = *capture.executor;
  Tensors results;
  try {
    executor.begin(given);
    run_phase("replayed step", [&] { executor.run(section, variables); });
    for (std::size_t i = 0; i < capture.layouts.size(); ++i) {
      Tensor own = ops::clone(executor.output(output_name(i)));
      results.push_back(capture.layouts[i] ? make_distributed(std::move(own), capture.layouts[i])
                                           : std::move(own));
    }
    executor.end();
  } catch (...) {
    executor.abandon();
    throw;
  }
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    parts_.optimizers[i]->count_step(capture.updated[i]);
    finishers_[i]->count_step();
  }
  ++calls_;
  ++counts_.replayed;
  replayed_last_ = true;
  return results;
}

Tensors CapturedStep::call(const Tensors& inputs, const StepNumbers& numbers) {
  const std::string name = kind_of(inputs);
  const auto found = std::ranges::find(captures_, name, &Capture::kind);
  counts_.refusal.clear();
  if (found != captures_.end()) {
    if (std::next(found) != captures_.end()) {
      replayed_last_ = false;
      std::rotate(found, std::next(found), captures_.end());
    }
    Capture& capture = *captures_.back();
    for (const auto& [stream, drawn] : capture.executor->program().draws) {
      random_stream(stream);  // made at its first use
    }
    const StepVariables variables = variables_of(numbers);
    counts_.refusal = capture.executor->refusal(variables);
    if (counts_.refusal.empty()) {
      return replay(capture, inputs, variables);
    }
  }
  rest();
  if (kinds_.size() >= most_kinds && !kinds_.contains(name)) {
    kinds_.clear();
  }
  if (found == captures_.end() && kinds_[name].eager >= calls_before) {
    return record(inputs, numbers, kinds_[name], name);
  }
  Tensors results = take(inputs, numbers, nullptr);
  ++counts_.eager;
  if (found == captures_.end()) {
    ++kinds_[name].eager;
  }
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
