// Steps that are replayed: what they depend on, and which program they have.
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
#include <string_view>
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
import :step_inputs;

namespace tessera {
std::vector<bool> Training::trained() const {
  std::vector<bool> all;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    all.push_back(parameter->value.requires_grad());
  }
  return all;
}

std::vector<std::int64_t> Training::missed_updates() const {
  std::vector<std::int64_t> missed = optimizer_->steps();
  const std::vector<bool> is_trained = trained();
  for (std::size_t i = 0; i < missed.size(); ++i) {
    missed[i] = is_trained[i] && missed[i] > 0 ? done_ - skipped_ - missed[i] : 0;
  }
  return missed;
}

StepVariables Training::variables_of(const StepBatch& batch, const Program* program) const {
  StepVariables variables;
  variables.numbers["loss_scale"] = 1.0 / batch.weight;
  variables.numbers["max_value"] = clipping_.max_value * scale();
  add_guards(variables, guards_);
  // Of steps that were begun, and of updates: a skipped step has none.
  variables.counts["begun"] = done_ + 1;
  variables.counts["step"] = done_ - skipped_ + 1;
  for (const auto& [name, drawn] :
       program != nullptr ? program->draws : std::map<std::string, std::uint64_t>()) {
    random_stream(name);  // made at its first use, which a replay from the first step has not had
  }
  variables.streams = random_state();
  return variables;
}

void Training::set_update(StepVariables& variables, double lr, double grad_scale) const {
  variables.numbers["lr"] = lr;
  variables.numbers["grad_scale"] = grad_scale;
}

std::map<std::string, Tensor> Training::inputs() const {
  std::map<std::string, Tensor> all;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    add_parameter(all, parameter->name, *parameter);
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model_)) {
    add_buffer(all, buffer->name, *buffer);
  }
  add_state(all, "", *optimizer_);
  if (scaler_) {
    all.emplace("scaler.scale", scale_);
  }
  all.insert(added_.begin(), added_.end());
  return all;
}

void Training::check_inputs(const Program& program) const {
  const std::map<std::string, Tensor> all = inputs();
  for (const auto& [name, number] : program.inputs) {
    const ProgramTensor& x = program.tensors[static_cast<std::size_t>(number)];
    const auto found = all.find(name);
    const bool is_own = !name.starts_with("rows.") && !name.starts_with(added_prefix);
    if (is_own && (found == all.end() || !(found->second.shape() == x.shape) ||
                   found->second.dtype() != x.dtype)) {
      fail_input(
          {.thing = fmt::format("captured step: input '{}'", name),
           .wrong = found == all.end() ? "the model as it is written has none of this name"
                                       : "the model as it is written has another one",
           .expected = found == all.end() ? std::string()
                                          : fmt::format("{}{}", name_of(found->second.dtype()),
                                                        to_string(found->second.shape())),
           .got = fmt::format("{}{}", name_of(x.dtype), to_string(x.shape)),
           .advice = "give what replaces a module parameters of the same names, shapes and types; "
                     "a transformation may add state"});
    }
  }
}

Training::StepRows Training::load_rows(const StepBatch& batch, const StepFunctions& functions) {
  StepRows rows{.micro_batches = rows_of(batch).micro_batches()};
  rows_of(batch).each(done_, [&](const MicroPart& part) {
    const Tensors tensors = functions.rows(part.batch);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      rows.tensors.emplace(fmt::format("rows.{}.{}", part.number, i), tensors[i]);
    }
  });
  return rows;
}

std::string Training::misfit(const Capture& capture, const StepRows& rows) const {
  if (trained() != capture.trained) {
    return "other parameters are frozen than when the step was recorded";
  }
  if (std::string other = other_modules(capture.modules, module_forms()); !other.empty()) {
    return other;
  }
  if (std::string other = other_guard(capture.whole().program(), guards_); !other.empty()) {
    return other;
  }
  const std::vector<std::int64_t> steps = optimizer_->steps();
  for (const std::size_t i : capture.updated) {
    const std::int64_t missed = done_ - skipped_ - steps[i];  // also of one that had no update yet
    if (missed != capture.missed[i]) {
      return fmt::format("'{}' has missed {} updates, and {} when the step was recorded",
                         optimizer_->parameters()[i]->name, missed, capture.missed[i]);
    }
  }
  const Program& program = capture.whole().program();
  std::set<std::string> recorded;
  for (const auto& [name, number] : program.inputs) {
    if (!name.starts_with("rows.")) {
      continue;
    }
    recorded.insert(name.substr(0, name.rfind('.')));
    const auto found = rows.tensors.find(name);
    const ProgramTensor& expected = program.tensors[static_cast<std::size_t>(number)];
    if (found != rows.tensors.end() &&
        (!(expected.shape == found->second.shape()) || expected.dtype != found->second.dtype())) {
      return fmt::format("the rows have another shape ({}) than the recorded ones",
                         to_string(found->second.shape()));
    }
  }
  if (!recorded.empty() && static_cast<std::int64_t>(recorded.size()) != rows.micro_batches) {
    return fmt::format("the step has {} micro-batches and the recorded one had {}",
                       rows.micro_batches, recorded.size());
  }
  return "";
}

Training::Capture* Training::capture_of(const StepRows& rows, const GuardPath& known) {
  counts_.refusal.clear();
  for (auto one = captures_.end(); one != captures_.begin();) {
    --one;
    const std::string why = misfit(*one, rows);
    if (!why.empty()) {
      counts_.refusal = counts_.refusal.empty() ? why : counts_.refusal;
      continue;
    }
    if (!agrees(one->guards, known)) {
      continue;
    }
    if (std::next(one) != captures_.end()) {
      finish_updates();  // of the last one
      replayed_last_ = false;
      std::rotate(one, std::next(one), captures_.end());
    }
    return &captures_.back();
  }
  return nullptr;
}

std::string Training::kind_of(const StepRows& rows) const {
  std::string text = fmt::format("{}", rows.micro_batches);
  for (const auto& [name, x] : rows.tensors) {
    text += fmt::format(" {}{}", name_of(x.dtype()), to_string(x.shape()));
  }
  for (const bool is_trained : trained()) {
    text += is_trained ? '1' : '0';
  }
  text += fmt::format(" {}", fmt::join(missed_updates(), " "));
  return text + text_of(guards_) + text_of(module_forms());
}

ModuleForms Training::module_forms() const {
  nn::Module* const root = &model_;
  return forms_of({&root, 1});
}

void Training::gather_inputs(const StepRows& rows, Capture& capture, Capture::PartNumber number) {
  const std::vector<nn::ParameterPointer>& parameters = optimizer_->parameters();
  const bool same = std::ranges::equal(parameters, capture.parameters,
                                       [](const nn::ParameterPointer& now, const Tensor& before) {
                                         return now->value.same_as(before);
                                       });
  if (!same || !replayed_last_) {  // otherwise only the rows are others
    const bool kept = std::ranges::any_of(
        parameters, [](const nn::ParameterPointer& p) { return p->places.gradient != nullptr; });
    if (kept) {
      rest_captures();  // what they hold of gradients is free to be given again
    }
    capture.parameters.clear();
    for (const nn::ParameterPointer& parameter : parameters) {
      capture.parameters.push_back(parameter->value);
    }
    for (ProgramPart& part : capture.parts) {
      part.given.clear();
    }
    capture.inputs = inputs();
  }
  ProgramPart& part = capture.parts[number];
  if (number != capture.running) {
    capture.parts[capture.running].executor->rest();  // their memory would be there twice
    capture.running = number;
  }
  if (part.given.empty()) {
    std::map<std::string, Tensor> all = capture.inputs;
    all.insert(rows.tensors.begin(), rows.tensors.end());
    if (number != Capture::whole_step) {
      take_pending(capture);
      all.insert(capture.pending.begin(), capture.pending.end());
    }
    part.given = arranged_inputs(*part.executor, std::move(all), !execution_.transforms.empty());
    return;
  }
  std::size_t at = 0;
  for (const auto& [name, unused] : part.executor->program().inputs) {
    if (const auto row = rows.tensors.find(name); row != rows.tensors.end()) {
      part.given[at] = row->second;
    }
    ++at;
  }
}

StepResult Training::replay_step(const StepBatch& batch, const StepRows& rows, Capture& capture,
                                 StepVariables variables) {
  if (!replayed_last_) {  // what styles derive from parameters is an input of the program
    finish_updates();
    plan_.after_optimizer();
  }
  optimizer_->prepare_state();
  const MemoryScope scope(MemoryCategory::activation);
  const bool leaves = capture.leaves() && !batch.last_train_step;
  const Capture::PartNumber number = left_    ? (leaves ? Capture::middle : Capture::last)
                                     : leaves ? Capture::first
                                              : Capture::whole_step;
  if (left_) {
    check_untouched(capture);
    add_before(variables, *left_);
  }
  gather_inputs(rows, capture, number);
  Executor& executor = *capture.parts[number].executor;
  executor.begin_in_order(capture.parts[number].given);
  // Nothing of the training moves before the end: a guard may give the replay up.
  const auto ended = [&](bool skipped) {
    executor.end();
    finisher_.count_step();
    ++counts_.replayed;
    replayed_last_ = true;
    count_step(batch, skipped);
  };
  run_phase("replayed gradients", [&] { run_gradients(executor, variables); });
  const StepResult result =
      checked(batch, executor.output("loss").item(), executor.output(norm_output()).item());
  executor.run("free", variables);
  if (result.skipped) {
    ended(true);
    return result;
  }
  set_update(variables, result.lr, grad_scale(result));
  if (!leaves) {
    run_phase("replayed update", [&] { executor.run("update", variables); });
  }
  ended(false);
  if (leaves) {
    leave_update(capture, variables);
  }
  optimizer_->count_step(capture.updated);
  return result;
}

}  // namespace tessera
