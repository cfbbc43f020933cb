// The model of a program.
module;
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.checkpoint;
import tessera.nn;
import tessera.tensor;
import :graph;
import :model;
import :program;

namespace tessera::exported {

ExportedModel::ExportedModel(ExportedGraph graph, const TensorSource& file)
    : program_(std::make_unique<Program>(std::move(graph))) {
  program_->build(*this, file);
  set_names();
  program_->divide(*this);
}

ExportedModel::~ExportedModel() = default;

std::string_view ExportedModel::kind() const { return "ExportedModel"; }

Tensors ExportedModel::forward(const Tensors& inputs) {
  return program_->run(inputs, is_training());
}

std::vector<std::string> ExportedModel::input_names() const { return program_->input_names(); }

void ExportedModel::load(const TensorSource& file) {
  StateDict state;
  for (const auto& [name, parameter] : nn::named_parameters(*this)) {
    state.tensors.emplace(name, parameter->value);
  }
  LoadOptions options{.strict = false};
  load_state(file, state, options);
}

std::vector<std::string> ExportedModel::blocks() const { return blocks_of(program_->graph()); }

void ExportedModel::set_activation_checkpointing(bool enabled) {
  program_->set_recompute(enabled);
  note_change();
}

std::shared_ptr<ExportedModel> load_exported(const std::string& path, Device device) {
  const std::unique_ptr<TensorSource> file = checkpoint_format("pt2").open(path);
  auto model = std::make_shared<ExportedModel>(read_exported_graph(*file), *file);
  nn::materialize(*model, device);
  model->load(*file);
  return model;
}

}  // namespace tessera::exported
