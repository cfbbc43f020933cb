module;
#include <cstddef>
#include <memory>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.parallel;

namespace tessera::runs {

FrozenCopy::FrozenCopy(const Task& task, const RunSpec& spec, const DeviceMesh& mesh)
    : model_(training_model(task, spec)) {
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*model_)) {
    parameter->value.set_requires_grad(false);
  }
  model_->train(false);
  plan_ =
      std::make_unique<parallel::ParallelPlan>(*model_, mesh, style_entries(spec), plugin::host());
}

void FrozenCopy::fill(nn::Module& model, Device device) {
  plan_->materialize(device);
  const NoGrad no_grad;
  const std::vector<nn::ParameterPointer> from = nn::all_parameters(model);
  const std::vector<nn::ParameterPointer> into = nn::all_parameters(*model_);
  for (std::size_t i = 0; i < into.size(); ++i) {
    ops::copy_(into[i]->value, from[i]->value);
  }
  plan_->initialized();
}

}  // namespace tessera::runs
