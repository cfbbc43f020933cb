// Evaluations by a program.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.program;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :captured_evaluation;
import :eager_steps;
import :step_inputs;

namespace tessera {
namespace {

constexpr const char* section_name = "evaluation";

/// What is there before an evaluation.
std::map<std::string, Tensor> model_inputs(nn::Module& model, const optim::Optimizer& optimizer) {
  std::map<std::string, Tensor> all;
  for (const nn::ParameterPointer& parameter : optimizer.parameters()) {
    all.emplace(parameter_input(parameter->name), local_of(parameter->value));
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    add_buffer(all, buffer->name, *buffer);
  }
  return all;
}

void add_rows(std::map<std::string, Tensor>& all, const Tensors& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    all.insert_or_assign(fmt::format("rows.0.{}", i), rows[i]);
  }
}

}  // namespace

Program CapturedEvaluation::record(const StepBatch& batch, const StepFunctions& functions) const {
  const NoGrad no_grad;
  const nn::EvaluationScope evaluation(steps_.model);
  const MemoryScope scope(MemoryCategory::activation);
  const EagerSteps::Rows rows = steps_.rows_of(batch);
  StepVariables variables;
  variables.streams = random_state();
  Recorder recorder;
  const Tensors given = functions.rows({.first = rows.first, .rows = rows.micro});
  std::map<std::string, Tensor> all = model_inputs(steps_.model, *steps_.optimizer);
  add_rows(all, given);
  for (const auto& [name, x] : all) {
    const bool is_parameter = name.starts_with(parameter_prefix);
    recorder.input(name, x, is_parameter ? MemoryCategory::parameter : MemoryCategory::other);
  }
  recorder.section(section_name, [&] {
    Tensor loss;
    run_phase(section_name,
              [&] { loss = steps_.whole(EagerSteps::checked(functions.loss_sum(given))); });
    recorder.output("loss", loss);
  });
  return program_of(recorder.finish(variables));
}

void CapturedEvaluation::set_program(Program program, const graph::ExecutionOptions& execution) {
  graph::ExecutionOptions options = execution;
  options.transforms.clear();
  options.dump.clear();
  options.memory_budget = 0;
  std::erase(options.passes, "keep_gathers");
  executor_ = graph::make_executor(std::move(program), options);
  executor_->rest();
}

double CapturedEvaluation::evaluate(std::int64_t batches, const StepBatch& batch,
                                    const StepFunctions& functions) {
  const NoGrad no_grad;
  const MemoryScope scope(MemoryCategory::activation);
  const EagerSteps::Rows rows = steps_.rows_of(batch);
  std::map<std::string, Tensor> all = model_inputs(steps_.model, *steps_.optimizer);
  double loss = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    rows.each(b, [&](const EagerSteps::MicroPart& part) {
      add_rows(all, functions.rows(part.batch));
      StepVariables variables;
      variables.streams = random_state();
      executor_->begin(all);
      run_phase(section_name, [&] { executor_->run(section_name, variables); });
      loss += executor_->output("loss").item() / batch.weight;
      executor_->end();
    });
  }
  executor_->rest();
  return steps_.checked_evaluation(loss);
}

}  // namespace tessera
