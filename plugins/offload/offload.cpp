// Offload: parameters that FSDP shards, their gradients and the optimizer's state are kept in files
// or in memory of the host between uses. The shards are copied from there to be gathered, gradients
// are copied there when they are reduced, and the optimizer runs where the state is.
// Options: see options_table.
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
import tessera.options;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "places.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

enum class Content { parameters, gradients, optimizer };

struct OffloadOptions {
  bool to_file = false;
  std::string folder;
  std::vector<Content> what = {Content::parameters, Content::gradients, Content::optimizer};

  bool has(Content one) const { return std::ranges::find(what, one) != what.end(); }
};

const OptionTable<OffloadOptions>& options_table() {
  using O = OffloadOptions;
  static const auto table =
      OptionTable<O>()
          .words("to", &O::to_file, {{"memory", false}, {"file", true}},
                 "`memory`: the host's, for a device that has its own; or `file`.")
          .add("folder", &O::folder,
               "Where the files are: it must be given with `to = \"file\"`. It is created if it "
               "does not exist; relative to the working directory.")
          .word_list("what", &O::what,
                     {{"parameters", Content::parameters},
                      {"gradients", Content::gradients},
                      {"optimizer", Content::optimizer}},
                     "What is kept there; `optimizer` is its state.");
  return table;
}

class Offload final : public ParallelStyle {
 public:
  explicit Offload(Options& options) : options_(options), settings_(options_table().read(options)) {
    if (settings_.what.empty()) {
      options.refuse("option 'what' is empty; name what is kept elsewhere, or remove the entry");
    }
    if (!settings_.to_file && !settings_.folder.empty()) {
      options.refuse("option 'folder' has no meaning with to = \"memory\"; remove it");
    }
    if (settings_.to_file) {
      check_folder();
    }
    place_ = settings_.to_file ? offload::file(settings_.folder) : offload::host_memory();
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
      const bool values = settings_.has(Content::parameters);
      const bool gradients = settings_.has(Content::gradients);
      places = {.value = values ? place_ : nullptr,
                .gradient = gradients ? place_ : nullptr,
                .state = settings_.has(Content::optimizer) ? place_ : nullptr,
                .set_by = target.entry};
      const std::int64_t copies = (values ? 1 : 0) + (gradients ? 1 : 0);
      bytes_ += copies * parameter->value.numel() *
                static_cast<std::int64_t>(size_of(parameter->value.dtype()));
    }
  }

  std::shared_ptr<MemoryPlace> memory_place() override { return place_; }

  void applied() override {
    struct statvfs file_system = {};
    if (settings_.folder.empty() || ::statvfs(existing_part().c_str(), &file_system) != 0) {
      return;
    }
    const auto available = static_cast<std::int64_t>(file_system.f_bavail) *
                           static_cast<std::int64_t>(file_system.f_frsize);
    if (available < bytes_) {
      options_.refuse(
          fmt::format("folder '{}' has {} bytes left, but parameters and gradients "
                      "alone need {}; choose another one",
                      settings_.folder, available, bytes_));
    }
  }

 private:
  /// What exists of the folder's path; the rest is created when it is used.
  std::filesystem::path existing_part() const {
    std::filesystem::path part = std::filesystem::absolute(settings_.folder);
    std::error_code ignored;
    while (part.has_relative_path() && !std::filesystem::exists(part, ignored)) {
      part = part.parent_path();
    }
    return part;
  }

  void check_folder() const {
    if (settings_.folder.empty()) {
      options_.refuse("option 'folder' is missing; name a folder on a fast disk");
    }
    const std::filesystem::path part = existing_part();
    if (!std::filesystem::is_directory(part) || ::access(part.c_str(), W_OK | X_OK) != 0) {
      options_.refuse(
          fmt::format("folder '{}' cannot be used, as '{}' is not a folder that this "
                      "user may write; choose another one",
                      settings_.folder, part.string()));
    }
  }

  Options options_;
  OffloadOptions settings_;
  std::int64_t bytes_ = 0;  // of all ranks, at least
  std::shared_ptr<MemoryPlace> place_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("Offload",
                               [](Options& options) { return std::make_unique<Offload>(options); });
}
