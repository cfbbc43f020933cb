// Offload: parameters that FSDP shards, their gradients and the optimizer's state are kept in files
// or in memory of the host between uses. The shards are copied from there to be gathered, gradients
// are copied there when they are reduced, and the optimizer runs where the state is.
// Options: to = "memory" | "file"; folder = "..." (for "file"); what = ["parameters", "gradients",
// "optimizer"].
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "places.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

class Offload final : public ParallelStyle {
 public:
  explicit Offload(Options& options) : options_(options) {
    const bool to_file = options.choice("to", "memory", {"file", "memory"}) == "file";
    folder_ = options.text("folder", "");
    for (const std::string& one : options.texts("what", {"parameters", "gradients", "optimizer"})) {
      if (one == "parameters") {
        parameters_ = true;
      } else if (one == "gradients") {
        gradients_ = true;
      } else if (one == "optimizer") {
        state_ = true;
      } else {
        options.refuse(fmt::format(
            "option 'what' has '{}' (expected \"parameters\", \"gradients\" or \"optimizer\")",
            one));
      }
    }
    if (!parameters_ && !gradients_ && !state_) {
      options.refuse("option 'what' is empty; name what is kept elsewhere, or remove the entry");
    }
    if (!to_file && !folder_.empty()) {
      options.refuse("option 'folder' has no meaning with to = \"memory\"; remove it");
    }
    if (to_file) {
      check_folder();
    }
    place_ = to_file ? offload::file(folder_) : offload::host_memory();
  }

  StyleFacts facts() const override { return {.extends_gathers = true, .most_axes = 0}; }

  void apply(const StyleTarget& target) override {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      auto& places = parameter->attach<nn::MemoryPlaces>();
      if (!places.set_by.empty()) {
        if (places.set_by == target.entry) {
          continue;  // of a module inside
        }
        options_.refuse(
            fmt::format("{} has a place for parameter '{}' already; let only one of "
                        "the two entries match it",
                        places.set_by, parameter->name));
      }
      places = {.value = parameters_ ? place_ : nullptr,
                .gradient = gradients_ ? place_ : nullptr,
                .state = state_ ? place_ : nullptr,
                .set_by = target.entry};
      const std::int64_t copies = (parameters_ ? 1 : 0) + (gradients_ ? 1 : 0);
      bytes_ += copies * parameter->value.numel() *
                static_cast<std::int64_t>(size_of(parameter->value.dtype()));
    }
  }

  std::shared_ptr<MemoryPlace> memory_place() override { return place_; }

  void applied() override {
    struct statvfs file_system = {};
    if (folder_.empty() || ::statvfs(existing_part().c_str(), &file_system) != 0) {
      return;
    }
    const auto available = static_cast<std::int64_t>(file_system.f_bavail) *
                           static_cast<std::int64_t>(file_system.f_frsize);
    if (available < bytes_) {
      options_.refuse(
          fmt::format("folder '{}' has {} bytes left, but parameters and gradients "
                      "alone need {}; choose another one",
                      folder_, available, bytes_));
    }
  }

 private:
  /// What exists of the folder's path; the rest is created when it is used.
  std::filesystem::path existing_part() const {
    std::filesystem::path part = std::filesystem::absolute(folder_);
    std::error_code ignored;
    while (part.has_relative_path() && !std::filesystem::exists(part, ignored)) {
      part = part.parent_path();
    }
    return part;
  }

  void check_folder() const {
    if (folder_.empty()) {
      options_.refuse("option 'folder' is missing; name a folder on a fast disk");
    }
    const std::filesystem::path part = existing_part();
    if (!std::filesystem::is_directory(part) || ::access(part.c_str(), W_OK | X_OK) != 0) {
      options_.refuse(
          fmt::format("folder '{}' cannot be used, as '{}' is not a folder that this "
                      "user may write; choose another one",
                      folder_, part.string()));
    }
  }

  Options options_;
  std::string folder_;
  bool parameters_ = false;
  bool gradients_ = false;
  bool state_ = false;
  std::int64_t bytes_ = 0;  // of all ranks, at least
  std::shared_ptr<MemoryPlace> place_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("Offload",
                               [](Options& options) { return std::make_unique<Offload>(options); });
}
