module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.hub;
import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;
import tessera.app.adapters;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

/// PyTorch's name of a floating type.
DType dtype_of(const std::string& name) {
  return name == "bfloat16"  ? DType::bf16
         : name == "float16" ? DType::f16
         : name == "float64" ? DType::f64
                             : DType::f32;
}

/// The folder that the run started from; empty: none.
std::string start_folder(const CheckpointReader& reader) {
  const nlohmann::json meta = parse_json(reader.meta());
  return meta.value(nlohmann::json::json_pointer("/config/model/from"), std::string());
}

/// Error (input): the model has rows for tokens that the one it started from, of which an adapter
/// is, does not have.
void check_no_new_tokens(const ModelShape& model, const std::string& from,
                         const std::string& checkpoint) {
  std::error_code error;
  if (from.empty() || !fs::exists(fs::path(from) / "config.json", error)) {
    return;
  }
  if (const std::int64_t before = read_model_folder(from).vocab; before < model.vocab) {
    fail_input({.thing = checkpoint,
                .wrong = fmt::format("its model has {} tokens, and that of {}, which the adapter "
                                     "is for, has {}",
                                     model.vocab, from, before),
                .advice = "export the whole model, without --adapter"});
  }
}

/// Copies the tokenizer's files, as transformers needs them, from the tokenizer's folder or from
/// the one that the run started from, if it is still there. Returns what to say of it.
std::string carry_tokenizer(const CheckpointReader& reader, const fs::path& to) {
  const std::string own = stored_tokenizer_folder(reader.meta());
  const std::string from = own.empty() ? start_folder(reader) : own;
  std::string said;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "tokenizer.model", "tekken.json", "vocab.json",
                           "vocab.txt", "merges.txt", "chat_template.jinja"}) {
    std::error_code error;
    if (!from.empty() && fs::is_regular_file(fs::path(from) / name, error)) {
      fs::copy_file(fs::path(from) / name, to / name);
      said += fmt::format(", {}", name);
    }
  }
  return said;
}

}  // namespace

int run_checkpoint_verify(const std::string& path) {
  std::vector<std::string> folders = checkpoints_in(path);
  std::error_code ignored;
  if (folders.empty() || fs::exists(fs::path(path) / "checkpoint.json", ignored)) {
    folders = {path};
  }
  std::string damage;
  for (const std::string& folder : folders) {
    std::vector<std::string> problems;
    std::uint64_t bytes = 0;
    try {
      const CheckpointReader reader(folder);
      bytes = reader.stored_bytes();
      for (const std::string& problem : reader.verify()) {
        problems.push_back(fmt::format("{}: {}", folder, problem));
      }
    } catch (const Error& error) {
      problems = {error.what()};
    }
    if (problems.empty()) {
      fmt::print("{}: whole, {} compared\n", folder, format_bytes(bytes));
    }
    for (const std::string& problem : problems) {
      damage += "\n  " + problem;
    }
  }
  if (!damage.empty()) {
    fail_input({.thing = path,
                .wrong = "damaged",
                .advice = fmt::format("use another checkpoint{}", damage)});
  }
  return 0;
}

int run_checkpoint_export(const ExportArguments& arguments) {
  const std::string& path = arguments.checkpoint;
  const CheckpointReader reader(path);
  ModelShape model = stored_model(reader.meta(), path);
  const Updates updates = stored_updates(reader.meta(), path);
  const MergedWeights merged(reader, updates, "model.");
  check_stored_sizes(model, merged, "model.", path);
  if (arguments.adapter && updates.empty()) {
    fail_input({.thing = path,
                .wrong = "its model has no low-rank updates (LoRA)",
                .advice = "export the whole model, without --adapter"});
  }
  if (!arguments.dtype.empty()) {
    model.dtype = arguments.dtype;
  }
  if (arguments.adapter) {
    check_takes_adapters(family_of(model), sizes_of(model), path);
    check_no_new_tokens(model, start_folder(reader), path);
    const std::string dtype = arguments.dtype.empty() ? "float32" : arguments.dtype;
    std::size_t tensors = 0;
    write_folder(arguments.folder, [&](const fs::path& folder) {
      const std::string base = start_folder(reader);
      tensors = write_peft(reader, updates, "model.", base, dtype_of(dtype), folder.string());
    });
    fmt::print(
        "{} tensors of the updates of {} layers as {}, and adapter_config.json, written to "
        "{}\n",
        tensors, updates.size(), dtype, arguments.folder);
    return 0;
  }
  std::size_t tensors = 0;
  std::string carried;
  write_folder(arguments.folder, [&](const fs::path& folder) {
    write_text((folder / "config.json").string(), hub_config(model));
    write_text((folder / "generation_config.json").string(), generation_config(model));
    const HubExport named(merged, "model.", family_of(model), sizes_of(model));
    tensors = checkpoint_format("safetensors")
                  .write(SelectedTensors(named, {.dtype = dtype_of(model.dtype)}), folder.string(),
                         {.max_file_bytes = arguments.max_file_bytes})
                  .tensors;
    carried = carry_tokenizer(reader, folder);
  });
  fmt::print("{} tensors as {}{}, config.json and generation_config.json{} written to {}\n",
             tensors, model.dtype,
             updates.empty()
                 ? ""
                 : fmt::format(" (the low-rank updates of {} layers are merged)", updates.size()),
             carried, arguments.folder);
  return 0;
}

}  // namespace tessera::app
