module;
#include <fmt/format.h>

#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.nn;
import tessera.plugin;

namespace tessera::parallel {
namespace {

using nlohmann::json;

constexpr const char* style = "FSDP";

json sets_of(const std::vector<std::vector<std::string>>& sets) {
  json all = json::array();
  for (const std::vector<std::string>& set : sets) {
    all.push_back({{"on", set}});
  }
  return all;
}

std::string type_name(std::optional<DType> type) {
  return type ? std::string(name_of(*type)) : "none";
}

/// The options as the style reads them.
json options_of(const FullyShardOptions& options) {
  json dims = json::array();
  for (const ShardDim& one : options.shard_dims) {
    dims.push_back({{"on", one.on}, {"dim", one.dim}});
  }
  return {
      {"shard_over", options.shard_over_all_axes ? "all" : "last"},
      {"together", sets_of(options.together)},
      {"reshard_after_forward", options.reshard_after_forward},
      {"reshard_ranks", options.reshard_ranks},
      {"reshard_after_backward", options.reshard_after_backward},
      {"prefetch", options.prefetch},
      {"accumulate", options.keeps_whole_gradients ? "whole" : "shards"},
      {"replicate_below", options.replicate_below},
      {"ignore", options.ignore},
      {"shard_dims", dims},
      {"param_dtype", type_name(options.precision.parameters)},
      {"cast_inputs", options.precision.cast_inputs},
      {"output_dtype", type_name(options.precision.outputs)},
      {"reduce_dtype", type_name(options.reduce_dtype)},
      {"missing", options.missing_gradients_are_zero ? "zeros" : "error"},
  };
}

std::vector<StyleEntry> entries_of(const DeviceMesh& mesh, const FullyShardOptions& options) {
  std::vector<StyleEntry> entries = options.styles;
  AxisNames axis = options.axis;
  if (axis.names().empty()) {
    const auto names = mesh.axis_names();
    axis = std::vector<std::string>(names.begin(), names.end());
  }
  entries.push_back({.style = style,
                     .axis = std::move(axis),
                     .on = options.groups,
                     .options = json_text(options_of(options))});
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
