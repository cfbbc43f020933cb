module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <range/v3/view/zip.hpp>
#include <set>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.run;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;
import tessera.app.base;
import tessera.app.config;
import tessera.optim;
import tessera.runs;

namespace tessera::app {
namespace {

std::string mesh_text(const runs::MeshConfig& mesh) {
  if (mesh.axes.empty()) {
    return "1 rank";
  }
  std::string text;
  std::int64_t ranks = 1;
  for (const auto& [axis, size] : ranges::views::zip(mesh.axes, mesh.shape)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis, size);
    ranks *= size;
  }
  return fmt::format("{} = {}", text, count_text(ranks, "rank"));
}

/// A number of the schedule's unit: "3 steps", "1.5 M tokens (12.2 steps)".
std::string span_text(const runs::RunSpec& config, std::int64_t count) {
  if (config.optimizer.schedule_unit == optim::ScheduleUnit::steps) {
    return count_text(count, "step");
  }
  return fmt::format("{} tokens ({:.4g} steps)", format_count(static_cast<double>(count)),
                     static_cast<double>(count) / static_cast<double>(config.step_tokens()));
}

/// The folder's tensors that predict tokens after the next one.
std::vector<std::string> further_tensors(const std::string& folder) {
  const hub::ModelShape shape = hub::read_model_folder(folder);
  const models::ModelFamily& family = hub::family_of(shape);
  const models::ModelSizes sizes = hub::sizes_of(shape);
  if (family.further_tensors(sizes).empty()) {
    return {};
  }
  const auto opened = hub::open_hub_tensors(folder);
  return hub::HubWeights(*opened.source, family, sizes).further();
}

/// Where the first weights are, and what of these folders has no part in the run; `vocab`: the
/// model's tokens, where it may have more than the folder's. `next_tokens`: what it predicts.
TableRows folder_rows(const runs::ModelConfig& model, std::int64_t vocab, bool next_tokens) {
  TableRows rows;
  std::error_code ignored;
  const bool one_folder =
      !model.adapter.empty() && std::filesystem::equivalent(model.from, model.adapter, ignored);
  std::set<std::string> of_adapter = {"adapter_model.safetensors"};
  if (!model.from.empty()) {
    const std::vector<std::string> files = hub::open_hub_tensors(model.from).source->files();
    std::set<std::string> used(files.begin(), files.end());
    if (!used.contains("model.safetensors")) {
      used.insert("model.safetensors.index.json");
    }
    if (one_folder) {
      used.merge(of_adapter);
      of_adapter = used;
    }
    const std::string what =
        files.size() == 1 ? files.front() : fmt::format("{} files", files.size());
    rows.push_back(
        {"weights", fmt::format("{} of {}{}", what, model.from,
                                hub::left_out_text(hub::files_left_out(model.from, used)))});
    if (next_tokens) {
      const std::vector<std::string> further = further_tensors(model.from);
      if (!further.empty()) {
        rows.push_back(
            {"not read",
             fmt::format("{} of layers that predict tokens after the next one ({}, ...); "
                         "an export has none",
                         count_text(std::ssize(further), "tensor"), shown(further.front()))});
      }
    }
    const std::int64_t stored =
        model.adds_tokens() ? hub::read_model_folder(model.from).vocab : vocab;
    if (vocab > stored) {
      rows.push_back({"new tokens", fmt::format("{}, from {} on; each row is the mean of the "
                                                "folder's",
                                                vocab - stored, stored)});
    }
  }
  if (!model.adapter.empty()) {
    const std::filesystem::path folder = model.adapter;
    if (!std::filesystem::is_directory(folder, ignored)) {
      fail_input({.thing = model.adapter,
                  .wrong = "there is no such folder",
                  .expected = "one with adapter_config.json and adapter_model.safetensors"});
    }
    const hub::PeftConfig config = hub::read_peft_config((folder / "adapter_config.json").string());
    const std::string base =
        config.base.empty()
            ? ""
            : fmt::format(", of the model '{}' by its adapter_config.json", shown(config.base));
    rows.push_back(
        {"adapter", fmt::format("{}{}{}", model.adapter, base,
                                hub::left_out_text(hub::files_left_out(folder, of_adapter)))});
  }
  return rows;
}

std::string optimizer_text(const runs::RunSpec& config) {
  const runs::OptimizerConfig& o = config.optimizer;
  std::string text =
      fmt::format("{}, lr {}, {}", o.name, o.lr, runs::word_of(config, "optimizer.schedule"));
  if (o.warmup > 0) {
    text += fmt::format(" after {} of warm-up", span_text(config, o.warmup));
  }
  if (o.cooldown > 0) {
    text += fmt::format(", down in the last {}", span_text(config, o.cooldown));
  }
  if (o.schedule_end > 0) {
    text += fmt::format(", ends after {}", span_text(config, o.schedule_end));
  }
  if (const auto groups = parse_json(o.groups.text).size(); groups > 0) {
    text += fmt::format(", {} of parameters", count_text(groups, "group"));
  }
  return text;
}

bool has_documents(const runs::Dataset& data) {
  return std::ranges::any_of(
      data.sources(), [](const runs::OpenedSource& source) { return source.documents != nullptr; });
}

std::string data_text(const runs::RunSpec& config, const runs::Dataset& data) {
  std::string text =
      data.has_images()
          ? fmt::format("{}, {} to train on, {}", count_text(data.files(), "file"),
                        count_text(data.windows(), "image"), runs::word_of(config, "data.order"))
          : fmt::format("{}, {} tokens to train on, {} {} of {}, {}",
                        count_text(data.files(), "file"),
                        format_count(static_cast<double>(data.training_tokens())), data.windows(),
                        has_documents(data) ? "rows" : "windows", config.data.seq_len,
                        runs::word_of(config, "data.order"));
  for (std::size_t i = 0; data.sources().size() > 1 && i < data.sources().size(); ++i) {
    text += fmt::format("{}source {}: {} rows, {:.1f}%", i == 0 ? "; " : ", ", i + 1,
                        data.training().source(i).rows(),
                        static_cast<double>(data.training().quota(i)) / 10);
  }
  return text;
}

}  // namespace

TableRows data_rows(const runs::RunSpec& config, const runs::Dataset& data) {
  const auto step_tokens = static_cast<double>(config.step_tokens());
  TableRows rows;
  rows.push_back({"data", data_text(config, data)});
  if (data.tokenizer() && !data.tokenizer()->path.empty()) {
    rows.push_back({"tokenizer", fmt::format("{}, {} tokens", data.tokenizer()->text(),
                                             data.tokenizer()->vocab())});
  }
  if (has_documents(data)) {
    const std::string packed =
        config.data.packs() ? fmt::format(" ({} documents are packed)", data.documents()) : "";
    rows.push_back(
        {"useful",
         fmt::format("{:.1f}% of the positions hold tokens{}{}", 100 * data.used_share(), packed,
                     config.classifies() ? std::string()
                                         : fmt::format(", the loss is over {:.1f}% of them",
                                                       100 * data.trained_share()))});
  }
  if (!data.left_out().empty()) {
    rows.push_back({"left out", data.left_out()});
  }
  rows.push_back(
      {"validation",
       data.validation_batches() == 0 ? "none"
       : data.has_images()
           ? count_text(data.validation_used(), "image")
           : fmt::format("{} tokens",
                         format_count(static_cast<double>(data.validation_used()) * step_tokens /
                                      static_cast<double>(config.train.batch)))});
  return rows;
}

TableRows plan_rows(const runs::RunSpec& config, const runs::DataTask& task) {
  const runs::ModelFacts model = task.facts();
  const runs::Dataset& data = task.data();
  const auto step_tokens = static_cast<double>(config.step_tokens());
  const double total = step_tokens * static_cast<double>(config.train.steps);
  TableRows rows = {
      {"model", fmt::format("{}: {} parameters, {}", model.family,
                            format_count(static_cast<double>(model.parameters)), model.text)},
      {"mesh", mesh_text(config.mesh)}};
  for (auto& row : folder_rows(config.model, model.vocab, !config.classifies())) {
    rows.insert(rows.end() - 1, std::move(row));
  }
  if (config.train.device != "cpu") {
    rows.push_back({"device", config.train.device});
  }
  for (auto& row : data_rows(config, data)) {
    rows.push_back(std::move(row));
  }
  rows.push_back(
      {"steps", fmt::format("{} of {} tokens: {} tokens, {:.2f} epochs", config.train.steps,
                            format_count(step_tokens), format_count(total),
                            static_cast<double>(config.train.steps) *
                                static_cast<double>(config.train.batch) /
                                static_cast<double>(data.windows()))});
  rows.push_back({"optimizer", optimizer_text(config)});
  rows.push_back(
      {"checkpoints", config.checkpoint.folder.empty() ? "none" : config.checkpoint.folder});
  rows.push_back({"metrics", config.log.metrics.empty() ? "none" : config.log.metrics});
  if (!config.sinks.empty()) {
    std::string names;
    for (const runs::SinkConfig& sink : config.sinks) {
      names += (names.empty() ? "" : ", ") + sink.sink;
    }
    rows.push_back({"sinks", names});
  }
  return rows;
}

}  // namespace tessera::app
