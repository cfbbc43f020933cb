// Evaluations by a program.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
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

Program Training::record_evaluation(const StepBatch& batch, const StepFunctions& functions) {
  const NoGrad no_grad;
  const nn::EvaluationScope evaluation(model_);
  const MemoryScope scope(MemoryCategory::activation);
  const Rows rows = rows_of(batch);
  const auto record = [&] {
    StepVariables variables;
    variables.streams = random_state();
    Recorder recorder;
    const Tensors given = functions.rows({.first = rows.first, .rows = rows.micro});
    std::map<std::string, Tensor> all = model_inputs(model_, *optimizer_);
    add_rows(all, given);
    for (const auto& [name, x] : all) {
      const bool is_parameter = name.starts_with(parameter_prefix);
      recorder.input(name, x, is_parameter ? MemoryCategory::parameter : MemoryCategory::other);
    }
    recorder.section(section_name, [&] {
      Tensor loss;
      run_phase(section_name, [&] { loss = whole(checked(functions.loss_sum(given))); });
      recorder.output("loss", loss);
    });
    return recorder.finish(variables);
  };
  return program_of(record());
}

void Training::set_evaluation(Program program) {
  graph::ExecutionOptions options = execution_;
  options.transforms.clear();
  options.dump.clear();
  options.memory_budget = 0;
  std::erase(options.passes, "keep_gathers");
  evaluation_ = graph::make_executor(std::move(program), options);
  evaluation_->rest();
}

double Training::evaluate(std::int64_t batches, const StepBatch& batch,
                          const StepFunctions& functions) {
  if (evaluation_ == nullptr) {
    return evaluate(batches, batch, LossSum([&](const BatchPart& part) {
                      return functions.loss_sum(functions.rows(part));
                    }));
  }
  finish_updates();
  const NoGrad no_grad;
  const MemoryScope scope(MemoryCategory::activation);
  const Rows rows = rows_of(batch);
  rest_captures();
  std::map<std::string, Tensor> all = model_inputs(model_, *optimizer_);
  double loss = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    rows.each(b, [&](const MicroPart& part) {
      add_rows(all, functions.rows(part.batch));
      StepVariables variables;
      variables.streams = random_state();
      evaluation_->begin(all);
      run_phase(section_name, [&] { evaluation_->run(section_name, variables); });
      loss += evaluation_->output("loss").item() / batch.weight;
      evaluation_->end();
    });
  }
  evaluation_->rest();
  return checked_evaluation(loss);
}

}  // namespace tessera
