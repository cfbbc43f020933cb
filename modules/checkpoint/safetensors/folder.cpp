module;
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../json.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :mapped_file;

namespace tessera {
namespace {

/// tensor -> file, as model.safetensors.index.json says.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const auto wrong = [&](const std::string& what) {
    fail_input({.thing = path, .wrong = what, .advice = "download the folder again"});
  };
  const auto index = read_json_object(path);
  if (!index.problem.empty()) {
    wrong(index.problem);
  }
  const auto found = index.value.find("weight_map");
  if (found == index.value.end() || !found->is_object() || found->empty()) {
    wrong("there is no weight_map from tensors to files");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : found->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      wrong(fmt::format("tensor '{}': {} is not the name of a file in this folder", tensor,
                        json_text(file)));
    }
    files.emplace(tensor, name);
  }
  return files;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder) : TensorSource(folder) {
  checkpoint_detail::check_no_parts(folder);
  const std::filesystem::path base(folder);
  const std::string single = (base / "model.safetensors").string();
  const std::string index = (base / "model.safetensors.index.json").string();
  std::error_code ignored;
  if (std::filesystem::exists(single, ignored)) {
    const auto file = std::make_shared<const SafetensorsFile>(single);
    tensors_ = file->tensors();
    for (const auto& [name, info] : tensors_) {
      file_of_.emplace(name, file.get());
    }
    opened_.emplace("model.safetensors", file);
    files_ = {"model.safetensors"};
    return;
  }
  if (!std::filesystem::exists(index, ignored)) {
    fail_input({.thing = folder,
                .wrong = "there is neither model.safetensors nor model.safetensors.index.json",
                .advice = "name a model folder in the format of transformers"});
  }
  for (const auto& [name, file_name] : read_weight_map(index)) {
    auto& file = opened_[file_name];
    if (!file) {
      file = std::make_shared<const SafetensorsFile>((base / file_name).string());
    }
    if (!file->contains(name)) {
      fail_input({.thing = index,
                  .wrong = fmt::format("tensor '{}' is not in the file '{}' that the index names",
                                       name, file_name),
                  .advice = "download the folder again"});
    }
    tensors_.emplace(name, file->info(name));
    file_of_.emplace(name, file.get());
  }
  // Readers differ in which of two copies they take, and in whether they see what is not listed.
  for (const auto& [file_name, file] : opened_) {
    files_.push_back(file_name);
    for (const auto& [name, info] : file->tensors()) {
      const auto listed = file_of_.find(name);
      if (listed == file_of_.end() || listed->second != file.get()) {
        fail_input(
            {.thing = index,
             .wrong = fmt::format(
                 "tensor '{}' is also in the file '{}', which the index does not name for it", name,
                 file_name),
             .advice = "download the folder again"});
      }
    }
  }
}

std::uint64_t SafetensorsFolder::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, file] : opened_) {
    bytes += file->bytes_read();
  }
  return bytes;
}

void SafetensorsFolder::copy_box(const std::string& name, const LocalPart& box,
                                 const Tensor& into) const {
  file_of_.at(name)->read(name, box, into);
}

}  // namespace tessera
