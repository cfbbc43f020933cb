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
import :capture_parts;
import :captured_evaluation;
import :eager_steps;
import :made_tensors;
import :step_plan;
import :step_objects;

namespace tessera {
namespace {

/// What is there before an evaluation.
StepInputs inputs_of(const StepObjects& objects) {
  StepInputs all = objects.inputs({});
  std::erase_if(all, [](const auto& input) {
    return input.second.role != Role::parameter && input.second.role != Role::buffer;
  });
  return all;
}

}  // namespace

Program CapturedEvaluation::record(const StepBatch& batch, const StepFunctions& functions) const {
  const NoGrad no_grad;
  const nn::EvaluationScope evaluation(steps_.model);
  const MemoryScope scope(MemoryCategory::activation);
  const RowDivision rows = steps_.rows_of(batch);
  StepVariables variables;
  variables.streams = random_state();
  Recorder recorder;
  const Tensors given = functions.rows({.first = rows.first, .rows = rows.micro});
  StepInputs all = inputs_of(steps_.objects);
  add_rows(all, 0, given);
  record_inputs(recorder, all);
  MadeTensors made;
  {
    const ModeScope scope_of_made(ModeLevel::below_distribution, made);
    recorder.section(SectionKind::evaluation, [&] {
      run_phase(name_of(Phase::evaluation), [&] {
        steps_.whole(EagerSteps::checked(functions.loss_sum(given))).record(recorder);
      });
    });
  }
  made.check_gone({});
  return program_of(recorder.finish(variables));
}

void CapturedEvaluation::set_program(Program program, const graph::ExecutionOptions& execution) {
  executor_ = graph::make_executor(std::move(program), graph::without_changes(execution));
  executor_->release_memory();
}

Evaluation CapturedEvaluation::evaluate(std::int64_t batches, const StepBatch& batch,
                                        const StepFunctions& functions) {
  const NoGrad no_grad;
  const MemoryScope scope(MemoryCategory::activation);
  const RowDivision rows = steps_.rows_of(batch);
  StepInputs all = inputs_of(steps_.objects);
  Evaluation sum;
  for (std::int64_t b = 0; b < batches; ++b) {
    rows.each(b, [&](const MicroPart& part) {
      add_rows(all, 0, functions.rows(part.batch));
      StepVariables variables;
      variables.streams = random_state();
      executor_->begin_in_order(arranged_inputs(*executor_, all, false));
      run_phase(name_of(Phase::evaluation),
                [&] { run_section(*executor_, SectionKind::evaluation, variables); });
      sum.loss += executor_->output(loss_output).item() / batch.weight;
      const std::vector<double> measured = WholeSums::measured_in(*executor_);
      sum.measured.resize(measured.size());
      for (std::size_t i = 0; i < measured.size(); ++i) {
        sum.measured[i] += measured[i] / batch.weight;
      }
      executor_->end();
    });
  }
  executor_->release_memory();
  return steps_.checked(sum);
}

}  // namespace tessera
