#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "commands/commands.hpp"
#include "config/config.hpp"
#include "llama_config.hpp"
#include "table.hpp"

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;

#include "training/setup.hpp"

namespace tessera::app {
namespace {

LlamaConfig model_of(const CheckpointReader& reader, const std::string& path) {
  const auto meta = nlohmann::json::parse(reader.meta(), nullptr, false);
  if (!meta.is_object() || !meta.contains("model")) {
    fail_input(fmt::format("{}: is not a checkpoint of 'tessera train'", path));
  }
  return parse_llama_config(meta["model"].dump(), path);
}

}  // namespace

int run_checkpoint_info(const std::string& path) {
  const CheckpointReader reader(path);
  const LlamaConfig model = model_of(reader, path);
  TableRows rows = {{"model", fmt::format("llama: {} parameters, dim {}, {} layers, vocabulary {}",
                                          format_count(static_cast<double>(model.parameters())),
                                          model.dim, model.layers, model.vocab)},
                    {"bytes", format_bytes(reader.stored_bytes())}};
  if (const auto step = reader.scalars().find("progress.step"); step != reader.scalars().end()) {
    rows.push_back({"step", fmt::format("{}", std::get<std::int64_t>(step->second))});
  }
  rows.push_back({"tensors", fmt::format("{}", reader.tensors().size())});
  for (const auto& [name, info] : reader.tensors()) {
    if (name.starts_with("model.")) {
      rows.push_back({"", name.substr(6),
                      fmt::format("{}{}", name_of(info.dtype), to_string(info.shape)),
                      reader.saved_layout(name)});
    }
  }
  fmt::print("{}", format_table(rows));
  return 0;
}

int run_checkpoint_verify(const std::string& path) {
  std::vector<std::string> folders = checkpoints_in(path);
  if (folders.empty() || std::filesystem::exists(std::filesystem::path(path) / "checkpoint.json")) {
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
    fail_input(fmt::format("{}: damaged; use another checkpoint{}", path, damage));
  }
  return 0;
}

int run_checkpoint_export(const std::string& path, const std::string& folder) {
  const CheckpointReader reader(path);
  const LlamaConfig model = model_of(reader, path);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail_input(fmt::format("{}: cannot be made a folder ({})", folder, error.message()));
  }
  const auto names =
      export_weights(reader, folder, {.prefix = "model.", .exclude = {}, .dtype = {}});
  const std::filesystem::path config = std::filesystem::path(folder) / "config.json";
  std::ofstream out(config);
  out << hugging_face_config(model) << '\n';
  out.close();
  if (!out) {
    fail(fmt::format("{}: cannot be written", config.string()));
  }
  fmt::print("{} tensors and config.json written to {}\n", names.size(), folder);
  return 0;
}

}  // namespace tessera::app
