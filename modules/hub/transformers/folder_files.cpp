module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <tessera/shown.hpp>
module tessera.hub;

import tessera.base;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

/// Weights in this format and in others, by how their names end.
constexpr std::array<std::string_view, 9> weights = {".safetensors", ".safetensors.index.json",
                                                     ".bin",         ".bin.index.json",
                                                     ".gguf",        ".h5",
                                                     ".msgpack",     ".pt",
                                                     ".pth"};
/// Code that generates text in transformers' place.
constexpr std::string_view custom_code = "custom_generate";

}  // namespace

void check_model_files(const fs::path& folder, const std::string& adapter,
                       const std::string& where) {
  std::error_code ignored;
  const fs::path config = folder / "adapter_config.json";
  if (!fs::exists(config, ignored) ||
      (!adapter.empty() && fs::equivalent(folder, adapter, ignored))) {
    return;
  }
  fail_input({.where = where,
              .thing = config.string(),
              .wrong = "transformers adds this adapter to the folder's model, and this run would "
                       "not",
              .advice = fmt::format(
                  "set model.adapter to the same folder, with [[parallel]] entries that make its "
                  "layers (LoRA), or to train the model without it, move {} elsewhere",
                  config.filename().string())});
}

std::vector<std::string> files_left_out(const fs::path& folder, const std::set<std::string>& used) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory(ignored)) {
      if (name == custom_code) {
        names.push_back(name + "/");
      }
    } else if (!used.contains(name) && std::ranges::any_of(weights, [&](std::string_view ending) {
                 return name.ends_with(ending);
               })) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string left_out_text(const std::vector<std::string>& names) {
  constexpr std::size_t most = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) {
    text += fmt::format("{}{}", i == 0 ? "; left out: " : ", ", shown(names[i]));
  }
  return names.size() > most ? text + fmt::format(" and {} more", names.size() - most) : text;
}

}  // namespace tessera::hub
