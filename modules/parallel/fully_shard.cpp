module;
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.nn;
import tessera.plugin;

namespace tessera::parallel {
namespace {

constexpr const char* style = "FSDP";

std::vector<StyleEntry> entries_of(const DeviceMesh& mesh, const FullyShardOptions& options) {
  std::vector<StyleEntry> entries = options.styles;
  AxisNames axis = options.axis;
  if (axis.names().empty()) {
    const auto names = mesh.axis_names();
    axis = std::vector<std::string>(names.begin(), names.end());
  }
  entries.push_back(
      {.style = style,
       .axis = std::move(axis),
       .on = options.groups,
       .options = fmt::format(
           R"({{"reshard_after_forward": {}, "prefetch": {}, "accumulate": "{}", )"
           R"("replicate_below": {}}})",
           options.reshard_after_forward, options.prefetch,
           options.keeps_whole_gradients ? "whole" : "shards", options.replicate_below)});
  return entries;
}

}  // namespace

FullySharded::FullySharded(nn::Module& model, const DeviceMesh& mesh,
                           const FullyShardOptions& options, plugin::Host& host)
    : plan_(model, mesh, entries_of(mesh, options), host),
      parameters_(plan_.styles().back()->sharded_parameters()) {
  if (parameters_ == nullptr) {
    fail({.thing = "fully_shard",
          .wrong = fmt::format("the plugin's style {} cannot be controlled by hand", style),
          .advice = "use the one that is installed with Tessera"});
  }
}

FullySharded fully_shard(nn::Module& model, const DeviceMesh& mesh,
                         const FullyShardOptions& options) {
  return {model, mesh, options, plugin::host()};
}

}  // namespace tessera::parallel
