module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
module tessera.app.generation;

import tessera.base;
import tessera.tokenize;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;
import tessera.app.data;
import tessera.app.model;
import tessera.app.adapters;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

/// A thread for each 4 million parameters: a token's products are one pass over the weights, and
/// waking a thread for a small part of it costs more than the part.
void choose_threads(const ModelShape& shape) {
  constexpr std::int64_t parameters_of_thread = std::int64_t{1} << 22;
  ops::set_threads(static_cast<int>(
      std::clamp<std::int64_t>(shape.parameters() / parameters_of_thread, 1, available_cores())));
}

/// The tokenizer of a model folder or a GGUF file; without one, bytes are tokens if the model
/// has as many.
tokenize::OpenedTokenizer folder_tokenizer(const std::string& folder, std::int64_t vocab) {
  constexpr std::int64_t bytes = 256;
  if (!own_tokenizer_file(folder).empty()) {
    return tokenize::open_tokenizer(folder);
  }
  tokenize::OpenedTokenizer opened;
  if (vocab == bytes) {
    opened.kind = "bytes";
    opened.tokenizer = tokenize::make_tokenizer(opened.kind);
  }
  return opened;
}

}  // namespace

TextModel::TextModel(const std::string& path, const std::string& tokenizer) : path_(path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail_input({.thing = path,
                .wrong = "there is no such file or folder",
                .advice = "name a checkpoint of 'tessera train', a model folder or a GGUF file"});
  }
  if (fs::exists(fs::path(path) / "config.json", ignored) || !gguf_file(path).empty()) {
    open_folder(tokenizer);
  } else {
    open_checkpoint(tokenizer);
  }
  model_->train(false);
}

void TextModel::make() {
  if (tokenizer_.tokenizer && shape_.vocab < tokenizer_.tokenizer->vocab_size()) {
    fail_input({.thing = path_,
                .wrong = "the model's vocabulary is smaller than that of its tokenizer",
                .expected = fmt::format("at least {} tokens", tokenizer_.tokenizer->vocab_size()),
                .got = fmt::format("{}", shape_.vocab)});
  }
  choose_threads(shape_);
  model_ = make_model(shape_, 0);
  nn::materialize(*model_);
}

void TextModel::open_checkpoint(const std::string& tokenizer) {
  const CheckpointReader reader(path_);
  shape_ = stored_model(reader.meta(), path_);
  if (const auto stored = stored_tokenizer(reader.meta(), path_, tokenizer)) {
    tokenizer_ = stored->opened;
  }
  const MergedWeights stored(reader, stored_updates(reader.meta(), path_), "model.");
  check_stored_sizes(shape_, stored, "model.", path_);
  make();
  StateDict weights;
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*model_)) {
    weights.tensors.emplace(parameter->name, parameter->value);
  }
  LoadOptions options;
  options.prefix = "model.";
  load_state(stored, weights, options);
}

void TextModel::open_folder(const std::string& tokenizer) {
  shape_ = read_model_folder(path_);
  tokenizer_ = tokenizer.empty() ? folder_tokenizer(path_, shape_.vocab)
                                 : tokenize::open_tokenizer(tokenizer);
  const OpenedTensors files = open_hub_tensors(path_);
  const HubWeights stored(*files.source, family_of(shape_), sizes_of(shape_));
  check_stored_sizes(shape_, stored, "", path_);
  make();
  load_model_weights(stored, *model_);
}

const tokenize::OpenedTokenizer& TextModel::tokenizer() const {
  if (!tokenizer_.tokenizer) {
    fail_input({.thing = path_,
                .wrong = "there is no tokenizer for text: the model was trained on token ids, or "
                         "came without one",
                .advice = "name one with --tokenizer"});
  }
  return tokenizer_;
}

bool TextModel::ends_at(std::int64_t token) const {
  const auto& stop = tokenizer_.special.stop;
  return std::ranges::find(shape_.eos, token) != shape_.eos.end() ||
         std::ranges::find(stop, token) != stop.end();
}

std::int64_t TextModel::longest() const {
  return family_of(shape_).longest_sequence(sizes_of(shape_));
}

std::int64_t TextModel::usual_length() const {
  const std::int64_t meant = std::max<std::int64_t>(shape_.max_positions, 1);
  return longest() > 0 ? std::min(meant, longest()) : meant;
}

std::int64_t TextModel::parameter_bytes() const {
  std::int64_t bytes = 0;
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*model_)) {
    bytes +=
        parameter->value.numel() * static_cast<std::int64_t>(size_of(parameter->value.dtype()));
  }
  return bytes;
}

}  // namespace tessera::app
