module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <utility>
#include <vector>

#include "torch_script.hpp"
module tessera.app.peer;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.checkpoint;
import tessera.hub;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// What a config asks for and the script does not compute.
struct UnsupportedKey {
  bool asked = false;
  const char* key;
  const char* what;
};

std::vector<UnsupportedKey> not_there_of_model(const hub::ModelShape& shape,
                                               const runs::RunSpec& config) {
  const bool llama = shape.family == "llama";
  const models::ModelSizes sizes = hub::sizes_of(shape);
  const auto has = [&](const char* flag) { return llama && sizes.values.flag(flag); };
  return {{!llama, "model.family", "only Llamas are computed"},
          {llama && sizes.values.text("rope_scaling") != std::string("none"), "model.rope_scaling",
           "no scaling of positions"},
          {has("attention_bias"), "model.attention_bias", "no biases"},
          {has("ffn_bias"), "model.ffn_bias", "no biases"},
          {config.model.dropout > 0, "model.dropout", "no dropout: random numbers would differ"},
          {!config.model.adapter.empty(), "model.adapter", "no adapters"}};
}

std::vector<UnsupportedKey> not_there_of_training(const runs::RunSpec& config) {
  const runs::TrainConfig& train = config.train;
  return {
      {train.objective != runs::ObjectiveKind::next_token, "train.objective",
       "only the next token"},
      {train.precision != DType::f32, "train.precision", "only f32"},
      {train.parameters != DType::f32, "train.parameters", "only f32"},
      {train.device != std::string("cpu"), "train.device", "only CPUs"},
      {train.activation_checkpointing, "train.activation_checkpointing", "nothing is recomputed"},
      {!train.freeze.empty(), "train.freeze", "everything is trained"},
      {train.clip_norm_type != std::string("2"), "train.clip_norm_type", "only the 2-norm"},
      {train.clip_grad_value > 0, "train.clip_grad_value", "only the norm is clipped"},
      {config.data.packs(), "data.packing", "one document in a row"},
      {config.optimizer.name != std::string("adamw"), "optimizer.name", "only adamw"},
      {config.optimizer.groups.text != std::string("[]"), "optimizer.groups", "one group"},
  };
}

bool is_one_of(const std::string& style, std::initializer_list<const char*> names) {
  return std::ranges::find(names, style) != names.end();
}

/// Empty: the entries make none of the layouts. PrepareModuleInput changes how often gradients are
/// summed, not what they are.
std::optional<TorchLayout> layout_of(const runs::RunSpec& config) {
  if (config.ranks() == 1) {
    return TorchLayout::one_rank;
  }
  const std::vector<runs::StyleConfig>& entries = config.parallel;
  const auto all_of = [&](std::initializer_list<const char*> names) {
    return !entries.empty() && std::ranges::all_of(entries, [&](const runs::StyleConfig& entry) {
      return is_one_of(entry.style, names) && entry.options.text == "{}";
    });
  };
  if (config.mesh.shape.size() != 1) {
    return std::nullopt;
  }
  return all_of({"FSDP"})        ? std::optional(TorchLayout::fully_sharded)
         : all_of({"Replicate"}) ? std::optional(TorchLayout::replicated)
         : all_of({"PrepareModuleInput", "ColwiseParallel", "RowwiseParallel"})
             ? std::optional(TorchLayout::tensor_parallel)
             : std::nullopt;
}

/// Rows of a step that each rank computes; those of tensor parallel layers have all.
std::int64_t own_rows(const runs::RunSpec& config, TorchLayout layout) {
  return layout == TorchLayout::tensor_parallel ? config.train.batch
                                                : config.train.batch / config.ranks();
}

/// The run's model with the values that a training begins with.
std::shared_ptr<nn::Module> initial_model(const runs::Run& run) {
  set_seed(static_cast<std::uint64_t>(run.config.train.seed));
  const std::shared_ptr<nn::Module> model = runs::training_model(*run.task, run.config);
  nn::materialize(*model);
  run.task->initialize(run.config, *model);
  return model;
}

void write_tensors(const TensorSource& source, const std::string& path) {
  SafetensorsWriter writer(path, source.tensors());
  for (const auto& [name, info] : source.tensors()) {
    writer.write(name, source.read(name));
  }
  writer.finish();
}

void write_weights(const runs::Run& run, const std::string& path) {
  const std::shared_ptr<nn::Module> model = initial_model(run);
  const TensorsInMemory own(nn::values_by_name(nn::all_parameters(*model)));
  write_tensors(hub::HubExport(own, "", hub::family_of(runs::language_of(run).shape()),
                               hub::sizes_of(runs::language_of(run).shape())),
                path);
}

void write_rows(const runs::Run& run, std::int64_t steps, const std::string& path) {
  std::vector<std::int64_t> inputs;
  std::vector<std::int64_t> targets;
  for (std::int64_t step = 0; step < steps; ++step) {
    const runs::Batch batch = runs::language_of(run).data().rows(step, 0, run.config.train.batch);
    inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
    targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
  }
  const Dims shape = {steps, run.config.train.batch, run.config.data.seq_len};
  write_tensors(
      TensorsInMemory({{"inputs", from_values(std::span<const std::int64_t>(inputs), shape)},
                       {"targets", from_values(std::span<const std::int64_t>(targets), shape)}}),
      path);
}

Json run_json(const runs::Run& run, TorchLayout layout, const std::vector<double>& lr,
              bool compile) {
  const models::ModelSizes sizes = hub::sizes_of(runs::language_of(run).shape());
  const runs::RunSpec& config = run.config;
  const Json options = parse_ordered_json(config.optimizer.options.text);
  Json model = {{"vocab", runs::language_of(run).shape().vocab}};
  for (const char* key : {"dim", "layers", "heads", "kv_heads", "head_dim", "ffn_dim"}) {
    model[key] = sizes.values.integer(key);
  }
  for (const char* key : {"rope_theta", "norm_eps"}) {
    model[key] = sizes.values.number(key);
  }
  model["tie_embeddings"] = sizes.values.flag("tie_embeddings");
  return {{"model", model},
          {"layout", name_of(layout)},
          {"threads", runs::threads_of_rank(config)},
          {"compile", compile},
          {"clip", config.train.clip_grad_norm},
          {"optimizer",
           {{"weight_decay", config.optimizer.weight_decay},
            {"decay", runs::word_of(config, "optimizer.decay")},
            {"betas", options.value("betas", std::vector<double>{0.9, 0.95})},
            {"eps", options.value("eps", 1e-8)}}},
          {"lr", lr}};
}

constexpr const char* script_name = "train_with_torch.py";

}  // namespace

std::string_view name_of(TorchLayout layout) {
  switch (layout) {
    case TorchLayout::one_rank:
      return "one_rank";
    case TorchLayout::fully_sharded:
      return "fully_sharded";
    case TorchLayout::replicated:
      return "replicated";
    case TorchLayout::tensor_parallel:
      return "tensor_parallel";
  }
  return "";
}

TorchLayout torch_layout(const runs::Run& run) {
  const runs::RunSpec& config = run.config;
  std::string problems;
  const auto add = [&](const std::string& place, std::string_view what) {
    problems += fmt::format("{}  {}: {}", problems.empty() ? "" : "\n", place, what);
  };
  for (const auto& list : {not_there_of_model(runs::language_of(run).shape(), config),
                           not_there_of_training(config)}) {
    for (const UnsupportedKey& one : list) {
      if (one.asked) {
        add(config.place(one.key), one.what);
      }
    }
  }
  const Json options = parse_ordered_json(config.optimizer.options.text);
  for (const auto& [option, value] : options.items()) {
    if (!is_one_of(option, {"betas", "eps"})) {
      add(config.place("optimizer.options"), "only betas and eps");
    }
  }
  for (const runs::SourceConfig& source : runs::data_sources(config)) {
    if (source.kind == runs::SourceConfig::Kind::jsonl) {
      add(config.place(source.key), "only rows in which every token is trained");
    }
  }
  const std::optional<TorchLayout> layout = layout_of(config);
  if (!layout) {
    add(config.place("parallel.style"),
        "one axis with FSDP, with Replicate, or with ColwiseParallel and RowwiseParallel, without "
        "options");
  } else if (config.train.micro_batch != 0 &&
             config.train.micro_batch < own_rows(config, *layout)) {
    add(config.place("train.micro_batch"), "no accumulation: all of a rank's rows at once");
  }
  if (!problems.empty()) {
    fail_input({.thing = "bench compare",
                .wrong = "PyTorch's side does not compute what the config asks for",
                .advice = "change it by overrides",
                .details = problems});
  }
  return *layout;
}

Torch::Torch(std::string python) : python_(std::move(python)) {
  const ProgramResult asked =
      run_program({python_, "-c", "import torch; print(torch.__version__)"},
                  Patience(wait_limit(), 60), "PyTorch: it is asked for its version", "fails");
  if (asked.code != 0) {
    fail_input(
        {.thing = "--python " + python_,
         .wrong = asked.code == -1 ? "it cannot be started" : "it has no torch",
         .advice = "name a Python with it (python3 -m venv env && env/bin/pip install torch)",
         .details = asked.code == -1 ? asked.output : ""});
  }
  version_ = asked.output.substr(0, asked.output.find_last_not_of("\n") + 1);
}

void Torch::write(const runs::Run& run, TorchLayout layout, const std::vector<double>& lr,
                  bool compile, const std::string& folder) const {
  const fs::path in(folder);
  write_text((in / script_name).string(), torch_script);
  write_text((in / "run.json").string(), json_text(run_json(run, layout, lr, compile)));
  std::error_code ignored;
  fs::remove(in / "weights.safetensors", ignored);
  fs::remove(in / "rows.safetensors", ignored);
  write_weights(run, (in / "weights.safetensors").string());
  write_rows(run, std::ssize(lr), (in / "rows.safetensors").string());
}

TrainedSteps Torch::train(const std::string& folder, std::int64_t ranks) const {
  const fs::path in(folder);
  std::vector<std::string> command = {python_};
  if (ranks > 1) {
    for (const std::string& word :
         {std::string("-m"), std::string("torch.distributed.run"), std::string("--standalone"),
          std::string("--nproc-per-node"), std::to_string(ranks)}) {
      command.push_back(word);
    }
  }
  command.push_back((in / script_name).string());
  command.push_back(folder);
  run_to_the_end("PyTorch", command);
  const Json result = parse_ordered_json(read_input((in / "torch.json").string()));
  return {.losses = result.at("losses").get<std::vector<double>>(),
          .seconds = result.at("seconds").get<std::vector<double>>(),
          .peak_bytes = result.at("peak_bytes").get<double>()};
}

}  // namespace tessera::app
