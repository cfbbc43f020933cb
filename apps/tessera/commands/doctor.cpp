module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.collective;
import tessera.app.base;

namespace tessera::app {
namespace {

/// Why the plugin for GPUs of NVIDIA was not built with the program; empty if it was.
constexpr std::string_view cuda_problem = TESSERA_CUDA_PROBLEM;

/// Where plugins come from and how many: "6 usable, 1 refused".
std::string plugin_count(const std::vector<plugin::PluginFile>& all) {
  const auto refused =
      std::ranges::count_if(all, [](const auto& found) { return !found.refusals.empty(); });
  return fmt::format("{} usable{}", all.size() - static_cast<std::size_t>(refused),
                     refused > 0 ? fmt::format(", {} refused", refused) : "");
}

/// Calls use(the offer's name, the plugin's file name) for each offer of a kind by a usable plugin.
template <class Use>
void for_each_offer(const std::vector<plugin::PluginFile>& all, std::string_view kind,
                    const Use& use) {
  for (const plugin::PluginFile& found : all) {
    if (!found.refusals.empty() || !found.stamp) {
      continue;
    }
    for (const plugin::Offer& offer : found.stamp->provides) {
      if (offer.kind == kind) {
        use(offer.name, std::filesystem::path(found.file).filename().string());
      }
    }
  }
}

/// Kinds of devices that usable plugins provide, each with its plugin.
std::string devices_in_words(const std::vector<plugin::PluginFile>& all) {
  std::string text = "cpu";
  for_each_offer(all, DevicePlugin::plugin_kind.name,
                 [&](const std::string& name, const std::string& file) {
                   text += fmt::format(", {} (by {})", name, file);
                 });
  return text;
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

/// The libraries of devices that are there: those found with their versions, and advice about the
/// others. A kind of which no device can be used has its reason instead.
struct DeviceLibraries {
  TableRows rows;
  std::vector<std::string> advice;
};
DeviceLibraries libraries_of_devices(const std::vector<plugin::PluginFile>& all) {
  DeviceLibraries libraries;
  for_each_offer(
      all, DevicePlugin::plugin_kind.name, [&](const std::string& name, const std::string&) {
        std::string text;
        try {
          const DeviceOffer offer = plugin::host().find<DevicePlugin>(name)();
          if (offer.libraries == nullptr) {
            return;
          }
          for (const DeviceLibrary& library : offer.libraries()) {
            if (library.version.empty()) {
              libraries.advice.push_back(
                  fmt::format("{}: {} is not found: {}.", name, library.name, library.advice));
            } else {
              text +=
                  fmt::format("{}{} {}", text.empty() ? "" : ", ", library.name, library.version);
            }
          }
        } catch (const Error& error) {
          text = error.what();
        }
        libraries.rows.push_back({libraries.rows.empty() ? "libraries" : "",
                                  fmt::format("{}: {}", name, or_none(text))});
      });
  return libraries;
}

/// What moves data between the devices of each kind, with its library or why there is none.
TableRows collectives_in_words(const std::vector<plugin::PluginFile>& all) {
  using collective::CollectivesPlugin;
  TableRows rows;
  for_each_offer(all, CollectivesPlugin::plugin_kind.name,
                 [&](const std::string& name, const std::string& file) {
                   std::string text;
                   try {
                     text = plugin::host().find<CollectivesPlugin>(name)().library;
                   } catch (const Error& error) {
                     text = error.what();
                   }
                   rows.push_back({rows.empty() ? "collectives" : "",
                                   fmt::format("{}: {} (by {})", name, or_none(text), file)});
                 });
  return rows;
}

}  // namespace

int run_doctor() {
  const Machine m = look_at_machine();
  const std::vector<plugin::PluginFile> plugins = plugin::Host().list();
  const std::string quota =
      m.core_quota > 0 ? fmt::format(", {:.1f} cores' time allowed", m.core_quota) : "";
  const std::string limit =
      m.memory_limit > 0 ? fmt::format(", limited to {}", format_bytes(m.memory_limit)) : "";
  TableRows rows = {{"processor", m.cpu.empty() ? "unknown" : m.cpu},
                    {"cores", fmt::format("{} usable of {}{}", m.usable_cores, m.cores, quota)},
                    {"SIMD", m.simd.empty() ? "none" : join_words(m.simd)},
                    {"memory", fmt::format("{} available of {}{}", format_bytes(m.memory_available),
                                           format_bytes(m.memory), limit)},
                    {"devices", devices_in_words(plugins)},
                    {"plugins", plugin_count(plugins)},
                    {"", "installed in " + or_none(plugin::installed_plugin_folder())},
                    {"", "yours in " + or_none(plugin::user_plugin_folder())}};
  const DeviceLibraries libraries = libraries_of_devices(plugins);
  const TableRows collectives = collectives_in_words(plugins);
  rows.insert(rows.end() - 3, libraries.rows.begin(), libraries.rows.end());
  rows.insert(rows.end() - 3, collectives.begin(), collectives.end());
  std::string text = format_table(rows);
  text += "\nLimits\n";
  for (const std::string& line : advice(m)) {
    text += "  " + line + "\n";
  }
  for (const std::string& line : libraries.advice) {
    text += "  " + line + "\n";
  }
  if (!cuda_problem.empty()) {
    text += fmt::format("  GPUs of NVIDIA are not supported by this build: {}; see docs/cuda.md.\n",
                        cuda_problem);
  }
  for (const plugin::PluginFile& found : plugins) {
    if (!found.refusals.empty()) {
      text +=
          fmt::format("  The plugin {} is refused; tessera plugin check {} prints the reason.\n",
                      found.file, found.file);
    }
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace tessera::app
