module;
#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.options;
import tessera.mesh;
import tessera.nn;
import tessera.plugin;

namespace tessera::parallel {

const OptionTable<FullyShardOptions>& fully_shard_table() {
  using F = FullyShardOptions;
  const auto precision = [](auto member) {
    return [member](auto& options) -> auto& { return options.precision.*member; };
  };
  const WordField::Words<std::optional<DType>> types = {
      {"none", std::nullopt}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"f32", DType::f32}};
  const auto dims = OptionTable<ShardDim>()
                        .add("on", &ShardDim::on, "Patterns over the names of parameters.")
                        .add("dim", &ShardDim::dim, "The dim.", {.low = 0});
  const auto sets = OptionTable<std::vector<std::string>>().add(
      "on", [](auto& set) -> auto& { return set; }, "Patterns over the names of modules.");
  static const auto table =
      OptionTable<F>()
          .add("reshard_after_forward", &F::reshard_after_forward,
               "Free whole values after forward and gather them again for backward; `false` keeps "
               "them, which needs more memory and one gather less.")
          .add("reshard_ranks", &F::reshard_ranks,
               "With `reshard_after_forward`: each rank keeps its part of the whole values as one "
               "of so many neighbouring ranks, and backward gathers among these only (the ranks of "
               "one machine, for example). 0: all ranks.",
               {.low = 0})
          .add("reshard_after_backward", &F::reshard_after_backward,
               "Free whole values after backward; `false` uses them again in the next forward, "
               "unless parameters were written.")
          .add("prefetch", &F::prefetch,
               "How many modules ahead values are gathered; 0: when they are needed.", {.low = 0})
          .words("accumulate", &F::keeps_whole_gradients, {{"shards", false}, {"whole", true}},
                 "`shards`: each micro-batch reduces its gradients into the shards; `whole` keeps "
                 "whole gradients until the last one, which needs more memory and communicates "
                 "once.")
          .words("param_dtype", precision(&Precision::parameters), types,
                 "What modules compute with, and the type in which values are gathered; `none`: as "
                 "`train.precision` says.")
          .words("reduce_dtype", &F::reduce_dtype,
                 {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}},
                 "The type of reduced gradients of 16-bit ones: f32, or that type. The sums "
                 "themselves are in f32.")
          .words("output_dtype", precision(&Precision::outputs), types,
                 "What floating outputs are cast to, of a matched module that the program calls "
                 "itself: of the model, as a rule.")
          .add("cast_inputs", precision(&Precision::cast_inputs),
               "With `param_dtype`: cast floating inputs of the matched modules to it.")
          .tables("shard_dims", &F::shard_dims, dims,
                  "Parameters that are sharded on another dim than 0: `[{ on = "
                  "[\"**.down_proj.weight\"], dim = 1 }]`.")
          .add("replicate_below", &F::replicate_below,
               "Parameters of fewer elements are replicated: gathering them costs more than it "
               "saves.",
               {.low = 0})
          .add("ignore", &F::ignore,
               "Patterns over the names of other parameters that are replicated.")
          .tables("together", &F::together, sets,
                  "Matched modules whose parameters are gathered all together, before the first of "
                  "them computes: `[{ on = [\"model.embed_tokens\", \"lm_head\"] }]`.")
          .words("shard_over", &F::shard_over_all_axes, {{"last", false}, {"all", true}},
                 "With several axes: `last` shards along the last one and replicates along the "
                 "first (hybrid sharding); `all` shards along all, whose ranks together must "
                 "divide the sharded dim.")
          .words("missing", &F::missing_gradients_are_zero, {{"error", false}, {"zeros", true}},
                 "A parameter without a gradient, in a group whose module backward has reached: an "
                 "error, or `zeros`: its gradient is 0.");
  return table;
}

namespace {

constexpr const char* style = "FSDP";

}  // namespace

std::vector<StyleEntry> fully_shard_entries(std::span<const std::string> axes,
                                            const FullyShardOptions& options) {
  std::vector<StyleEntry> entries = options.styles;
  AxisNames axis = options.axis;
  if (axis.names().empty()) {
    axis = std::vector<std::string>(axes.begin(), axes.end());
  }
  entries.push_back({.style = style,
                     .axis = std::move(axis),
                     .on = options.groups,
                     .options = fully_shard_table().json(options)});
  return entries;
}

FullySharded::FullySharded(nn::Module& model, const DeviceMesh& mesh,
                           const FullyShardOptions& options, plugin::Host& host)
    : plan_(model, mesh, fully_shard_entries(mesh.axis_names(), options), host),
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
