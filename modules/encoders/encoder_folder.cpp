// Folders of encoders in Hugging Face's format.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.encoders;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;
import tessera.hub;
import :encoder;
import :encoder_model;
import :encoder_config;
import :encoder_families;
import :encoder_folder;

namespace tessera::encoders {
namespace fs = std::filesystem;

EncoderFolder::EncoderFolder(const std::string& folder) {
  const std::string file = (fs::path(folder) / "config.json").string();
  const ParsedJson json =
      read_json_object(file, {.bytes = 16'000'000, .values = 1'000'000, .depth = 64});
  if (!json.problem.empty()) {
    fail_input({.thing = file, .wrong = json.problem});
  }
  config_ = parse_encoder_config(json_text(json.value), file);
  hub::check_model_files(folder, "", folder);
  tensors_ = std::make_shared<const SafetensorsFolder>(folder);
  if (config_.shape.layers > std::ssize(tensors_->tensors())) {
    fail_input({.thing = file,
                .wrong = fmt::format("num_hidden_layers is {}, but the folder has {} tensors",
                                     config_.shape.layers, tensors_->tensors().size())});
  }
}

void EncoderFolder::set_labels(std::vector<std::string> labels, EncoderHead head) {
  config_ = with_labels(std::move(config_), std::move(labels), head);
  new_head_ = true;
}

StateDict EncoderFolder::state_of(EncoderModel& model) const {
  std::set<const nn::Parameter*> own;  // of a head that is not the folder's
  if (new_head_) {
    for (const nn::ParameterPointer& parameter : model.head_parameters()) {
      own.insert(parameter.get());
    }
  }
  const hub::HubWeights stored(*tensors_, names_of(config_, false, new_head_));
  StateDict state;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    // A folder for masked tokens may lack what a classifier pools with.
    const bool absent = new_head_ && name.starts_with("pooler.") && !stored.contains(name);
    if (!own.contains(parameter.get()) && !absent) {
      state.tensors.emplace(name, parameter->value);
    }
  }
  return state;
}

std::shared_ptr<EncoderModel> EncoderFolder::build() const {
  auto model = std::make_shared<EncoderModel>(config_.shape);
  check_weights(hub::HubWeights(*tensors_, names_of(config_, false, new_head_)), state_of(*model));
  return model;
}

void EncoderFolder::load(EncoderModel& model) const {
  StateDict state = state_of(model);
  load_weights(hub::HubWeights(*tensors_, names_of(config_, false, new_head_)), state);
}

std::shared_ptr<EncoderModel> encoder_from_folder(const std::string& folder, Device device) {
  const EncoderFolder opened(folder);
  std::shared_ptr<EncoderModel> model = opened.build();
  nn::materialize(*model, device);
  opened.load(*model);
  return model;
}

void write_encoder_folder(const EncoderConfig& config, const TensorSource& parameters,
                          const std::string& folder, const std::string& prefix) {
  const hub::HubExport named(parameters, prefix, names_of(config, true));
  fs::create_directories(folder);
  ExportOptions options;
  if (!config.dtype.empty()) {
    options.dtype = hub::type_named(config.dtype);
  }
  export_weights(named, folder, options);
  write_text((fs::path(folder) / "config.json").string(), encoder_config_text(config));
}

}  // namespace tessera::encoders
