// Calls of a captured step: which program they have, and how they are recorded and replayed.
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
import tessera.execute;
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

/// What a call was given, which may be split as a batch is.
void add_inputs(StepInputs& all, const Tensors& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    all.emplace(fmt::format("input.{}", i),
                StepInput{.value = local_of(inputs[i]), .role = Role::rows});
  }
}

}  // namespace

std::string CapturedStep::form_of(const Tensors& inputs) {
  std::string text;
  for (const Tensor& x : inputs) {
    text += text.empty() ? "" : ", ";
    text += x.is_distributed() ? to_string(*x.spec())
                               : fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape()));
  }
  return text;
}

CapturedStep::Missed CapturedStep::missed() const {
  Missed all;
  for (const optim::Optimizer* optimizer : parts_.optimizers) {
    const std::vector<std::int64_t> steps = optimizer->steps();
    const std::int64_t most = steps.empty() ? 0 : *std::ranges::max_element(steps);
    all.emplace_back();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool trained = optimizer->parameters()[i]->value.requires_grad();
      all.back().push_back(trained ? std::optional(most - steps[i]) : std::nullopt);
    }
  }
  return all;
}

std::string CapturedStep::kind_of(const Tensors& inputs, const StepNumbers& numbers,
                                  const ModuleForms& modules) const {
  std::string text = form_of(inputs) + text_of(numbers.guards) + text_of(modules);
  const Missed missed = this->missed();
  for (std::size_t o = 0; o < missed.size(); ++o) {
    const std::vector<std::int64_t> steps = parts_.optimizers[o]->steps();
    text += ' ';
    for (std::size_t i = 0; i < steps.size(); ++i) {
      // One that no call has updated yet may be one that none updates.
      text += missed[o][i] ? fmt::format("{},", steps[i] == 0 ? 0 : *missed[o][i]) : "-,";
    }
  }
  return text;
}

std::string CapturedStep::misfit(const Capture& capture, const std::string& form,
                                 const ModuleForms& modules, const Missed& missed,
                                 const StepNumbers& numbers) const {
  if (form != capture.form) {
    return fmt::format("the inputs have another form ({})", form);
  }
  if (std::string other = other_modules(capture.modules, modules); !other.empty()) {
    return other;
  }
  for (std::size_t o = 0; o < missed.size(); ++o) {
    for (std::size_t i = 0; i < missed[o].size(); ++i) {
      if (missed[o][i].has_value() != capture.missed[o][i].has_value()) {
        return "other parameters are frozen than when the step was recorded";
      }
    }
    for (const std::size_t i : capture.updated[o]) {
      if (missed[o][i] != capture.missed[o][i]) {
        return fmt::format("'{}' has missed {} updates, and {} when the step was recorded",
                           parts_.optimizers[o]->parameters()[i]->name, *missed[o][i],
                           *capture.missed[o][i]);
      }
    }
  }
  return other_guard(capture.program(), numbers.guards);
}

Tensors CapturedStep::record(const Tensors& inputs, const StepNumbers& numbers,
                             std::optional<Recording>& recording) {
  for (optim::Optimizer* optimizer : parts_.optimizers) {
    optimizer->prepare_state();  // what the call makes does not outlive it
  }
  const StepVariables variables = variables_of(numbers);
  Recorder recorder;
  StepInputs all = state();
  add_inputs(all, inputs);
  record_inputs(recorder, all);
  Tensors results = take(inputs, numbers, &recorder);
  recording = recorder.finish(variables);
  return results;
}

std::unique_ptr<CapturedStep::Capture> CapturedStep::capture_of(CapturedProgram captured,
                                                                Missed missed) {
  auto capture = std::make_unique<Capture>();
  capture->form = std::move(captured.form);
  capture->modules = forms_of(parts_.modules);
  capture->missed = std::move(missed);
  capture->layouts = std::move(captured.layouts);
  capture->executor = graph::make_executor(std::move(captured.program), execution_, &added_);
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    capture->updated.push_back(
        updated_by(capture->program(), static_cast<int>(i), parts_.optimizers[i]->parameters(),
                   [&](const nn::ParameterPointer& parameter) { return input_of(parameter); }));
  }
  if (!parameters_.empty()) {
    for (auto& [name, value] : added_) {
      value = ops::to_device(value, parameters_.front().second->value.device());
    }
  }
  return capture;
}

void CapturedStep::set_program(CapturedProgram captured) {
  for (optim::Optimizer* optimizer : parts_.optimizers) {
    optimizer->prepare_state();
  }
  Missed none = missed();
  for (auto& parameters : none) {
    for (std::optional<std::int64_t>& updates : parameters) {
      updates = updates ? std::optional<std::int64_t>(0) : std::nullopt;
    }
  }
  Program program = std::move(captured.program);
  calls_of_.add(
      std::move(program),
      [&](Program whole) {
        captured.program = std::move(whole);
        return capture_of(std::move(captured), std::move(none));
      },
      "before the first step");
}

std::string CapturedStep::capture_ahead(const std::function<CapturedProgram()>& make) {
  CapturedProgram captured;
  on_meta(current_rank(), [&] { captured = make(); });
  std::string reads = reads_values(captured.program);
  if (reads.empty()) {
    set_program(std::move(captured));
  }
  return reads;
}

CapturedProgram CapturedStep::capture(const Tensors& inputs, const StepNumbers& numbers) {
  StepNumbers now = numbers;
  calls_of_.capture([&] {
    // What is computed from a number's value() is a constant, which other values show.
    for (auto& [name, value] : now.others) {
      value = value * 1.0002441406 + 1e-6;
    }
    (*this)(inputs, now);
  });
  const auto& capture = static_cast<const Capture&>(*calls_of_.last());
  return {.program = capture.program(), .form = capture.form, .layouts = capture.layouts};
}

Tensors CapturedStep::replay(Capture& capture, const Tensors& inputs,
                             const StepVariables& variables) {
  if (!std::exchange(replayed_last_, false)) {
    for (parallel::ParallelPlan* plan : parts_.plans) {
      plan->after_optimizer();  // what styles derive from parameters is an input of the program
    }
  }
  const MemoryScope scope(MemoryCategory::activation);
  StepInputs given = state();
  add_inputs(given, inputs);
  Executor& executor = *capture.executor;
  Tensors results;
  try {
    executor.begin_in_order(arranged_inputs(executor, given, !execution_.transforms.empty()));
    run_phase("replayed step", [&] { run_section(executor, SectionKind::step, variables); });
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
  replayed_last_ = true;
  return results;
}

Tensors CapturedStep::call(const Tensors& inputs, const StepNumbers& numbers) {
  const std::string form = form_of(inputs);
  const ModuleForms modules = forms_of(parts_.modules);
  const Missed before = missed();
  std::string held;
  for (const auto& [name, parameter] : parameters_) {
    held = held.empty() ? held_gradient(*parameter) : held;
  }
  Tensors results;
  const CapturedFunction::Call call{
      .misfit =
          [&](const CapturedFunction::Entry& entry) {
            return misfit(static_cast<const Capture&>(entry), form, modules, before, numbers);
          },
      .kind = [&] { return kind_of(inputs, numbers, modules); },
      .replay =
          [&](CapturedFunction::Entry& entry) {
            results = replay(static_cast<Capture&>(entry), inputs, variables_of(numbers));
          },
      .before_taking =
          [&](const std::string& why) {
            refuse_untransformed(execution_, "call", why);
            replayed_last_ = false;
          },
      .take = [&] { results = take(inputs, numbers, nullptr); },
      .record =
          [&] {
            std::optional<Recording> recording;
            results = record(inputs, numbers, recording);
            return recording;
          },
      .make =
          [&](Program program) {
            CapturedProgram captured{.program = std::move(program), .form = form};
            for (const Tensor& x : results) {
              captured.layouts.push_back(x.is_distributed() ? x.spec() : SpecHandle());
            }
            return capture_of(std::move(captured), before);
          },
      .refused = std::move(held)};
  calls_of_.call(call);
  return results;
}

}  // namespace tessera
