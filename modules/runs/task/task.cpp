module;
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.checkpoint;
import tessera.train;

// What a task does unless it says otherwise.
namespace tessera::runs {

Tensors RankTask::validation_rows(const BatchPart& /*part*/) {
  fail("the task has no rows for a validation");
}
Tensor RankTask::states(const Tensors& /*rows*/) {
  fail("the task is not computed by stages of a model");
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): tasks that take it keep it
bool RankTask::watch_losses(LossWatch /*watch*/) { return false; }
StepGuards RankTask::guards(std::int64_t /*step*/) const { return {}; }
Measures RankTask::measures(std::span<const double> /*measured*/) const { return {}; }

bool Task::set_activation_checkpointing(nn::Module& model, bool enabled) const {
  nn::LanguageModel* const language = nn::as_language_model(model);
  if (language != nullptr) {
    language->set_activation_checkpointing(enabled);
  }
  return language != nullptr;
}
std::unique_ptr<optim::Optimizer> Task::optimizer(
    const std::vector<nn::ParameterPointer>& /*parameters*/) const {
  return nullptr;
}
void Task::initialize(const RunSpec& /*spec*/, nn::Module& model) const { nn::initialize(model); }
Fingerprint Task::earlier_values(const Fingerprint& /*own*/) const { return {}; }
std::vector<std::pair<std::string, std::string>> Task::checkpoint_meta() const { return {}; }
void Task::keep_files(const std::string& /*folder*/) const {}
std::shared_ptr<const CheckpointBase> Task::checkpoint_base(const RunSpec& /*spec*/,
                                                            const std::string& /*base_hash*/,
                                                            nn::Module& /*model*/) const {
  return nullptr;
}
void Task::check_files(const RunSpec& /*spec*/, nn::Module& /*model*/, bool /*values*/,
                       const std::string& /*base_hash*/) const {}

}  // namespace tessera::runs
