module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.tensor;
import tessera.collective;

namespace tessera::runs {
namespace {

std::int64_t peak_of(const MemoryStatistics& memory, MemoryCategory category) {
  return memory.peak[static_cast<std::size_t>(category)];
}

/// What a device holds of it: saved states are on their way to a file in the memory of the host.
std::int64_t on_device(const MemoryStatistics& memory) {
  return memory.total_peak - peak_of(memory, MemoryCategory::snapshot);
}

/// What a plugin of collectives may take of a device for a rank's groups, which a plan does not
/// know: NCCL takes some 0.3 GiB for each. Those of an axis share them, except where it has two
/// ranks, which have two groups or more (FSDP: gathers and reductions).
std::int64_t bytes_of_groups(const RunSpec& config, Device device) {
  constexpr std::int64_t of_a_group = std::int64_t{300} << 20;
  const std::vector<std::string> kinds =
      plugin::host().names(collective::CollectivesPlugin::plugin_kind.name);
  const bool has_groups = std::ranges::any_of(
      kinds, [&](const std::string& kind) { return device_type(kind) == device.type; });
  if (config.mesh.device_collectives == collective::DeviceCollectives::host || !has_groups) {
    return 0;
  }
  std::int64_t bytes = 0;
  for (const auto size : config.mesh.shape) {
    bytes += size > 2 ? of_a_group : size == 2 ? 2 * of_a_group : 0;
  }
  return bytes;
}

/// The largest number of sequences that divides the rank's and whose step fits; 0: there is none.
std::int64_t fitting_rows(const StepMemory& step, std::int64_t available) {
  // With fewer rows the peak may be elsewhere, so all others count in full, also the workspace,
  // which may have one size for any number of rows.
  const std::int64_t of_rows = peak_of(step.memory, MemoryCategory::activation);
  std::int64_t others = -of_rows - peak_of(step.memory, MemoryCategory::snapshot);
  for (const std::int64_t peak : step.memory.peak) {
    others += peak;
  }
  for (std::int64_t rows = step.micro - 1; rows > 0; --rows) {
    if (step.rows % rows == 0 && others + of_rows * rows / step.micro <= available) {
      return rows;
    }
  }
  return 0;
}

std::string advice_for(const StepMemory& step, std::int64_t available, bool shared) {
  if (shared) {
    return "give each rank a device of its own (without a number in train.device)";
  }
  if (const std::int64_t rows = fitting_rows(step, available); rows > 0) {
    return fmt::format("set train.micro_batch = {}, which fits", rows);
  }
  return "share the parameters (FSDP) over more ranks, store less (train.parameters = \"bf16\", "
         "the "
         "style Offload), or lower data.seq_len";
}

}  // namespace

Tensors KernelSearch::call(const Call& call, NextCall& next) {
  if (call.op.view == nullptr && !kernel_of(call.op, step_context().planned_device)) {
    const std::string* const module = current_module();
    missing_.try_emplace(call.op.name, module == nullptr ? std::string() : *module);
  }
  return next(call);
}

void check_device_kernels(const RunSpec& config, const MissingKernels& missing) {
  if (missing.empty()) {
    return;
  }
  std::vector<std::string> names;
  for (const auto& [name, module] : missing) {
    names.push_back(module.empty() ? name : fmt::format("{} (module '{}')", name, module));
  }
  fail_input({.where = config.place("train.device"),
              .wrong = fmt::format("'{}' has no kernels for operators of the step: {}",
                                   config.train.device, join_words(names)),
              .advice = "use another model, style or precision, or the device 'cpu'"});
}

std::string memory_text(const MemoryStatistics& memory) {
  std::string text = format_bytes(static_cast<std::uint64_t>(memory.total_peak));
  for (int i = 0; i < memory_category_count; ++i) {
    const std::int64_t bytes = memory.peak[static_cast<std::size_t>(i)];
    if (bytes > 0) {
      text += fmt::format("{} {} {}", text.find(':') == std::string::npos ? ":" : ",",
                          name_of(static_cast<MemoryCategory>(i)),
                          format_bytes(static_cast<std::uint64_t>(bytes)));
    }
  }
  return text;
}

void check_device_memory(const RunSpec& config, const StepMemory& step) {
  // Ranks that another launcher starts may be on other machines.
  const int ranks =
      collective::ranks_started_here(static_cast<int>(config.ranks()), config.machine);
  const bool shared = ranks > 1 && device_of(config, 0, ranks) == device_of(config, 1, ranks);
  std::int64_t needed = on_device(step.memory);
  if (step.least > 0) {
    needed = std::min(needed, step.least);
  }
  for (int number = 0; number < (shared ? 1 : ranks); ++number) {
    const Device device = device_of(config, number, ranks);
    const std::optional<DeviceCapacity> memory = device_memory(device);
    const std::int64_t all = shared ? needed * ranks : needed;
    const std::int64_t of_groups = memory ? bytes_of_groups(config, device) : 0;
    if (!memory || static_cast<std::uint64_t>(all + of_groups) <= memory->free) {
      continue;
    }
    const std::string kept = of_groups == 0
                                 ? ""
                                 : fmt::format(", {} of it for groups of ranks",
                                               format_bytes(static_cast<std::uint64_t>(of_groups)));
    fail_input(
        {.where = config.place("train.device"),
         .wrong =
             fmt::format("{} has too little memory for {}: {}", to_string(device),
                         shared ? fmt::format("the steps of {} ranks", ranks) : "a rank's step",
                         memory_text(step.memory)),
         .expected = format_bytes(static_cast<std::uint64_t>(all)),
         .got = fmt::format("{} free of {}{}", format_bytes(memory->free),
                            format_bytes(memory->total), kept),
         .advice = advice_for(step, static_cast<std::int64_t>(memory->free) - of_groups, shared)});
  }
}

}  // namespace tessera::runs
