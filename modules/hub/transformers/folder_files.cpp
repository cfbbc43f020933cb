module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
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

/// JSON with numbers as Python writes them, "Infinity" for one, in the words of transformers 5:
/// {"__float__": "Infinity"}.
std::string with_float_words(std::string_view text) {
  constexpr std::string_view words[] = {"-Infinity", "Infinity", "NaN"};
  std::string json;
  bool in_text = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto* const word =
        in_text ? std::end(words)
                : std::ranges::find_if(words, [&](auto one) { return rest.starts_with(one); });
    if (word != std::end(words)) {
      json += fmt::format(R"({{"__float__": "{}"}})", *word);
      at += word->size();
      continue;
    }
    // What follows a backslash ends no text.
    const std::size_t length = in_text && rest.starts_with('\\') && rest.size() > 1 ? 2 : 1;
    in_text ^= rest.front() == '"';
    json += rest.substr(0, length);
    at += length;
  }
  return json;
}

}  // namespace

ParsedJson read_config_json(const std::string& file, const JsonLimits& limits) {
  ParsedJson strict = read_json_object(file, limits);
  std::error_code ignored;
  if (strict.problem.empty() || fs::file_size(file, ignored) > limits.bytes || ignored) {
    return strict;
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const std::string json = with_float_words(text);
  return json.size() == text.size() ? strict : parse_json_object(json, limits);
}

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
