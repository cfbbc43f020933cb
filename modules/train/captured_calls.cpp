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
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :capture_parts;
import :captured_step;
import :step_inputs;

namespace tessera {
namespace {

std::string input_name(std::size_t i) { return fmt::format("input.{}", i); }

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

std::string CapturedStep::kind_of(const Tensors& inputs, const StepNumbers& numbers) const {
  std::string text = form_of(inputs) + text_of(numbers.guards) + text_of(forms_of(parts_.modules));
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
                                 const Missed& missed, const StepNumbers& numbers) const {
  if (form != capture.form) {
    return fmt::format("the inputs have another form ({})", form);
  }
  if (std::string other = other_modules(capture.modules, forms_of(parts_.modules));
      !other.empty()) {
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
  return other_guard(capture.executor->program(), numbers.guards);
}

CapturedStep::Capture* CapturedStep::capture_of(const Tensors& inputs, const StepNumbers& numbers,
                                                const GuardPath& known) {
  counts_.refusal.clear();
  const std::string form = form_of(inputs);
  const Missed missed = this->missed();
  for (auto one = captures_.end(); one != captures_.begin();) {
    --one;
    if (const std::string why = misfit(**one, form, missed, numbers); !why.empty()) {
      counts_.refusal = counts_.refusal.empty() ? why : counts_.refusal;
      continue;
    }
    if (!agrees((*one)->guards, known)) {
      continue;
    }
    if (std::next(one) != captures_.end()) {
      replayed_last_ = false;
      std::rotate(one, std::next(one), captures_.end());
    }
    return captures_.back().get();
  }
  return nullptr;
}

Tensors CapturedStep::record(const Tensors& inputs, const StepNumbers& numbers,
                             const std::string& kind) {
  for (optim::Optimizer* optimizer : parts_.optimizers) {
    optimizer->prepare_state();
  }
  const StepVariables variables = variables_of(numbers);
  Missed before = missed();
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
  Recording recording = recorder.finish(variables);
  ++counts_.recorded;
  const bool compares = compares_ || execution_.compares_recordings;
  // What guards have read is part of the kind.
  const std::string whole_kind = kind + text_of(guards_of(recording.program));
  const auto compared = recorded_.find(whole_kind);
  if (compares && compared == recorded_.end()) {
    keep_recording(recorded_, whole_kind, std::move(recording));
    return results;
  }
  CapturedProgram captured{.program = compares
                                          ? compared_program(compared->second, std::move(recording))
                                          : program_of(std::move(recording)),
                           .form = form_of(inputs)};
  for (const Tensor& x : results) {
    captured.layouts.push_back(x.is_distributed() ? x.spec() : SpecHandle());
  }
  add_capture(std::move(captured), std::move(before),
              captures_.empty() ? first_capture : counts_.refusal);
  std::erase_if(kinds_, [&](const auto& one) { return one.first.starts_with(kind); });
  return results;
}

void CapturedStep::add_capture(CapturedProgram captured, Missed missed, const std::string& reason) {
  check_guards(captured.program);
  auto capture = std::make_unique<Capture>(Capture{.form = std::move(captured.form),
                                                   .modules = forms_of(parts_.modules),
                                                   .missed = std::move(missed),
                                                   .layouts = std::move(captured.layouts),
                                                   .guards = guards_of(captured.program)});
  if (captures_.size() >= most_captures) {
    captures_.erase(captures_.begin());  // its memory is free before the new one's is taken
    ++counts_.evicted;
  }
  capture->executor = graph::make_executor(std::move(captured.program), execution_, &added_);
  for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
    capture->updated.push_back(updated_by(
        capture->executor->program(), static_cast<int>(i), parts_.optimizers[i]->parameters(),
        [&](const nn::ParameterPointer& parameter) { return input_of(parameter); }));
  }
  if (!parameters_.empty()) {
    for (auto& [name, value] : added_) {
      value = ops::to_device(value, parameters_.front().second->value.device());
    }
  }
  captures_.push_back(std::move(capture));
  count_capture(counts_, reason);
  replayed_last_ = false;
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
  add_capture(std::move(captured), std::move(none), ahead_of_steps);
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
  compares_ = true;
  StepNumbers now = numbers;
  while (captures_.empty()) {
    // What is computed from a number's value() is a constant, which other values show.
    for (auto& [name, value] : now.others) {
      value = value * 1.0002441406 + 1e-6;
    }
    (*this)(inputs, now);
  }
  compares_ = false;
  const Capture& capture = *captures_.back();
  return {.program = capture.executor->program(), .form = capture.form, .layouts = capture.layouts};
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
    executor.begin_in_order(
        arranged_inputs(executor, std::move(given), !execution_.transforms.empty()));
    run_phase("replayed step", [&] { executor.run(step_section, variables); });
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

std::optional<Tensors> CapturedStep::replayed(const Tensors& inputs, const StepNumbers& numbers,
                                              Attempt& attempt) {
  std::string given_up;
  for (std::size_t tried = 0; tried < most_captures; ++tried) {
    Capture* const capture = capture_of(inputs, numbers, attempt.known);
    if (capture == nullptr) {
      break;
    }
    for (const auto& [stream, drawn] : capture->executor->program().draws) {
      random_stream(stream);  // made at its first use
    }
    const StepVariables variables = variables_of(numbers);
    counts_.refusal = capture->executor->refusal(variables);
    if (!counts_.refusal.empty()) {
      attempt.refused = true;
      return std::nullopt;
    }
    try {
      return replay(*capture, inputs, variables);
    } catch (const GuardFailed& failed) {  // nothing was changed
      attempt.known = path_of(failed, capture->guards);
      given_up = guard_in_words(capture->guards[failed.number()], failed.now());
      ++counts_.given_up;
      rest();
    }
  }
  counts_.refusal = given_up.empty() ? counts_.refusal : given_up;
  return std::nullopt;
}

Tensors CapturedStep::call(const Tensors& inputs, const StepNumbers& numbers) {
  Attempt attempt;
  for (const auto& [name, parameter] : parameters_) {
    if (parameter->value.grad()) {
      counts_.refusal = held_gradient(*parameter);
      attempt.refused = true;
      break;
    }
  }
  if (attempt.refused) {
    // Taken as it is.
  } else if (std::optional<Tensors> results = replayed(inputs, numbers, attempt)) {
    return *std::move(results);
  }
  if (!execution_.transforms.empty()) {
    fail({.thing = fmt::format("transformation '{}'", execution_.transforms.front().name),
          .wrong = fmt::format("this call has no program that it could change ({})",
                               counts_.refusal.empty() ? "none was set" : counts_.refusal),
          .advice = "capture the step ahead, make calls of one form, or leave the "
                    "transformation out"});
  }
  rest();
  const std::string kind = kind_of(inputs, numbers);
  std::int64_t& taken = taken_of(kinds_, kind + text_of(attempt.known));
  if (!attempt.refused && taken >= steps_before) {
    return record(inputs, numbers, kind);
  }
  Tensors results = take(inputs, numbers, nullptr);
  ++counts_.eager;
  ++taken;
  return results;
}

}  // namespace tessera
