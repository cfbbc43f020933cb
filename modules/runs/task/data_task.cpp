module;
#include <memory>
#include <string>
#include <utility>
module tessera.runs;

import tessera.base;
import tessera.hub;

namespace tessera::runs {

void DataTask::keep_files(const std::string& folder) const {
  if (const auto& tokenizer = data_->tokenizer()) {
    hub::keep_tokenizer(folder, *tokenizer);
  }
}

std::pair<std::string, std::string> DataTask::tokenizer_meta() const {
  return {"tokenizer", hub::to_json(data_->tokenizer())};
}

std::shared_ptr<const DataTask> open_data_task(const RunSpec& spec,
                                               const ContinuedRows& continued) {
  if (spec.classifies()) {
    return open_class_task(spec, continued);
  }
  return open_language_task(spec, continued);
}

const DataTask& data_task_of(const Run& run) {
  const auto* const task = dynamic_cast<const DataTask*>(run.task.get());
  require(task != nullptr, "the run's task is a program's own");
  return *task;
}

}  // namespace tessera::runs
