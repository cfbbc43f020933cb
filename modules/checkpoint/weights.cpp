module;
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :file;
import :values;

namespace tessera {

std::vector<std::string> export_weights(const TensorSource& from, const std::string& folder,
                                        const ExportOptions& options) {
  namespace fs = std::filesystem;
  std::map<std::string, TensorInfo> tensors;
  std::vector<std::string> written;
  for (const auto& [stored_name, stored] : from.tensors()) {
    if (!stored_name.starts_with(options.prefix)) {
      continue;
    }
    const std::string name = stored_name.substr(options.prefix.size());
    if (std::any_of(options.exclude.begin(), options.exclude.end(),
                    [&](const std::string& pattern) { return matches_pattern(name, pattern); })) {
      continue;
    }
    const bool casts = options.dtype && can_cast(stored.dtype, *options.dtype);
    tensors.emplace(name, TensorInfo{casts ? *options.dtype : stored.dtype, stored.shape});
    written.push_back(name);
  }
  if (tensors.empty()) {
    fail_input(
        {.thing = from.path(),
         .wrong = fmt::format("it has no tensor whose name begins with '{}'", options.prefix)});
  }
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) {
    fail_input({.thing = folder,
                .wrong = fmt::format("the folder cannot be created ({})", problem.message()),
                .advice = "export elsewhere"});
  }
  const std::string path = (fs::path(folder) / "model.safetensors").string();
  const std::string temporary = fmt::format("{}.tmp-{:x}", path, ::getpid());
  try {
    // transformers refuses files that do not say whose layout the tensors have.
    SafetensorsWriter writer(temporary, tensors, {{"format", "pt"}});
    for (const auto& [name, info] : tensors) {
      const Tensor whole = empty(info.shape, info.dtype);
      const Dims begin = Dims::filled(info.shape.size(), 0);
      from.read(options.prefix + name, {begin, info.shape}, whole);
      checkpoint_detail::check_finite(whole, begin,
                                      fmt::format("{}: tensor '{}'", from.path(), name));
      writer.write(name, whole);
    }
    writer.finish();
    fs::rename(temporary, path);
    checkpoint_detail::sync_folder(folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  return written;
}

}  // namespace tessera
