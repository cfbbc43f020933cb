module;
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../json.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :mapped_file;
import :select;
import :stored_values;

namespace tessera {

namespace checkpoint_detail {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, TensorInfo>;

std::uint64_t bytes_of(const TensorInfo& info) {
  return static_cast<std::uint64_t>(info.shape.product()) * size_of(info.dtype);
}

/// The tensors of each file, in the order of their names.
std::vector<Tensors> divided(const Tensors& tensors, std::uint64_t most) {
  std::vector<Tensors> files(1);
  std::uint64_t bytes = 0;
  for (const auto& [name, info] : tensors) {
    if (most > 0 && !files.back().empty() && bytes + bytes_of(info) > most) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().emplace(name, info);
    bytes += bytes_of(info);
  }
  return files;
}

/// Writes some of the tensors, one after the other.
void write_file(const TensorSource& from, const std::string& path, const Tensors& tensors) {
  // transformers refuses files that do not say whose layout the tensors have.
  SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
  for (const auto& [name, info] : tensors) {
    const Tensor whole = empty(info.shape, info.dtype);
    const Dims begin = Dims::filled(info.shape.size(), 0);
    from.read(name, {begin, info.shape}, whole);
    check_finite(whole, begin, fmt::format("{}: tensor '{}'", from.path(), name));
    writer.write(name, whole);
  }
  writer.finish();
}

/// model.safetensors.index.json: which tensor is in which file.
std::string weight_map(const std::vector<Tensors>& files, const std::vector<std::string>& names) {
  nlohmann::json map = nlohmann::json::object();
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const auto& [name, info] : files[i]) {
      map[name] = names[i];
      bytes += bytes_of(info);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}},
                                {"weight_map", std::move(map)}};
  return json_text(index, 2) + "\n";
}

void write_model(const TensorSource& from, const std::string& folder,
                 const std::vector<Tensors>& files) {
  std::vector<std::string> names = {"model.safetensors"};
  if (files.size() > 1) {
    names.clear();
    for (std::size_t i = 1; i <= files.size(); ++i) {
      names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i, files.size()));
    }
  }
  const auto temporary = [&](const std::string& name) {
    return fmt::format("{}.tmp-{:x}", (fs::path(folder) / name).string(), ::getpid());
  };
  try {
    for (std::size_t i = 0; i < files.size(); ++i) {
      write_file(from, temporary(names[i]), files[i]);
    }
    if (files.size() > 1) {
      const std::string text = weight_map(files, names);
      names.emplace_back("model.safetensors.index.json");
      OutputFile out(temporary(names.back()));
      out.write(0, std::as_bytes(std::span(text)));
      out.finish();
    }
    for (const std::string& name : names) {
      fs::rename(temporary(name), fs::path(folder) / name);
    }
    sync_folder(folder);
  } catch (...) {
    for (const std::string& name : names) {
      std::error_code ignored;
      fs::remove(temporary(name), ignored);
    }
    throw;
  }
}

}  // namespace
}  // namespace checkpoint_detail

std::vector<std::string> export_weights(const TensorSource& from, const std::string& folder,
                                        const ExportOptions& options) {
  const SelectedTensors selected(
      from, {.prefix = options.prefix, .exclude = options.exclude, .dtype = options.dtype});
  const std::vector<std::map<std::string, TensorInfo>> files =
      checkpoint_detail::divided(selected.tensors(), options.max_file_bytes);
  std::error_code ignored;
  if (std::filesystem::exists(folder, ignored)) {
    checkpoint_detail::write_model(selected, folder, files);
  } else {
    NewFolder made(folder);
    checkpoint_detail::write_model(selected, made.path(), files);
    made.complete();
  }
  std::vector<std::string> written;
  for (const auto& [name, info] : selected.tensors()) {
    written.push_back(name);
  }
  return written;
}

}  // namespace tessera
