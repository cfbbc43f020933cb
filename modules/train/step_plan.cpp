module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.capture;
import tessera.optim;
import :step_plan;

namespace tessera {

namespace step_numbers {

constinit const StepNumber<std::int64_t, BeforeStep> steps_begun = {
    .name = "begun", .of = [](const BeforeStep& known) { return known.done + 1; }};
constinit const StepNumber<std::int64_t, BeforeStep> updates = {
    .name = "step", .of = [](const BeforeStep& known) { return known.updates + 1; }};
constinit const StepNumber<double, BeforeStep> loss_share = {
    .name = "loss_share", .of = [](const BeforeStep& known) { return 1.0 / known.weight; }};
constinit const StepNumber<double, BeforeStep> max_value = {
    .name = "max_value",
    .of = [](const BeforeStep& known) { return known.max_value * known.scaler_factor; }};
constinit const StepNumber<double, BeforeUpdate> lr = {
    .name = "lr", .of = [](const BeforeUpdate& known) { return known.lr; }};
constinit const StepNumber<double, BeforeUpdate> grad_scale = {
    .name = "grad_scale", .of = [](const BeforeUpdate& known) {
      return optim::clip_factor(known.grad_norm, known.max_norm) / known.scaler_factor;
    }};

}  // namespace step_numbers

namespace {

template <class Value>
Value known(const std::map<std::string, Value>& values, const std::string& name) {
  const auto found = values.find(name);
  require(found != values.end(), "step: its number '" + name + "' is not known");
  return found->second;
}

}  // namespace

StepPlan::StepPlan(Recorder* recorder, const StepGuards& guards)
    : recorder_(recorder), variables_{.streams = random_state(), .guards = guards} {}

void StepPlan::know(const BeforeStep& known) {
  set(step_numbers::steps_begun, known);
  set(step_numbers::updates, known);
  set(step_numbers::loss_share, known);
  set(step_numbers::max_value, known);
}

void StepPlan::know(const BeforeUpdate& known) {
  set(step_numbers::lr, known);
  set(step_numbers::grad_scale, known);
}

Number StepPlan::number(const std::string& name) const {
  const double value = known(variables_.numbers, name);
  return recorder_ == nullptr ? Number(value) : Number::variable(name, value);
}

Count StepPlan::count(const std::string& name) const {
  const std::int64_t value = known(variables_.counts, name);
  return recorder_ == nullptr ? Count(value) : Count::variable(name, value);
}

void StepPlan::section(SectionKind kind, const std::function<void()>& body) const {
  recorder_ == nullptr ? body() : recorder_->section(kind, body);
}

std::string parameter_input(const std::string& name) { return "parameter." + name; }
std::string state_input(const std::string& name) { return "optimizer." + name; }
std::string gradient_input(const std::string& name) { return "gradient." + name; }
std::string buffer_input(const std::string& name) { return "buffer." + name; }
std::string call_input(std::size_t number) { return fmt::format("input.{}", number); }
std::string measured_output(std::size_t number) { return fmt::format("measured.{}", number); }
const char* norm_output(double norm) { return norm == 2 ? "squared_norm" : "norm_power"; }
std::string call_output(std::size_t number) { return fmt::format("output.{}", number); }

void add_values(StepInputs& all, const std::map<std::string, Tensor>& values, Role role) {
  for (const auto& [name, value] : values) {
    all.emplace(name, StepInput{.value = value, .role = role});
  }
}

void add_rows(StepInputs& all, int micro_batch, const Tensors& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    all.insert_or_assign(
        fmt::format("rows.{}.{}", micro_batch, i),
        StepInput{.value = rows[i], .role = Role::rows, .micro_batch = micro_batch});
  }
}

}  // namespace tessera
