#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.app.config;
import tessera.runs;

#include "features.hpp"
#include "small_run.hpp"

namespace runs = tessera::runs;
using namespace tessera::app;

namespace parallel_test {

std::vector<Feature> members(Set set) {
  std::vector<Feature> all;
  for (unsigned i = 0; i < features; ++i) {
    if (has(set, Feature{i})) {
      all.push_back(Feature{i});
    }
  }
  return all;
}
std::string text_of(Set set) {
  std::string text;
  for (const Feature one : members(set)) {
    text += (text.empty() ? "" : " + ") + std::string(feature_names[one]);
  }
  return text;
}

namespace {

std::string entry(const std::string& style, const std::string& axis, const std::string& on,
                  const std::string& options = "") {
  return "{style=\"" + style + "\"" + (axis.empty() ? "" : ",axis=\"" + axis + "\"") + ",on=[" +
         on + "]" + (options.empty() ? "" : ",options={" + options + "}") + "}";
}

/// A mixture's feed-forward is not split by layers: it is computed whole on each rank of the axis.
std::vector<std::string> tensor_entries(Set set) {
  const bool sequence = has(set, sequence_parallel);
  const bool classes = has(set, loss_parallel);
  const bool mixture = has(set, expert_parallel);
  const std::string along = sequence ? "output=\"Shard(1)\"" : "";
  std::vector<std::string> all;
  if (sequence || classes) {
    all.push_back(entry("RowwiseParallel", "tensor", "\"model.embed_tokens\"",
                        "input=\"Replicate\"" + (along.empty() ? "" : "," + along)));
  }
  if (sequence) {
    all.push_back(entry("SequenceParallel", "tensor",
                        R"("model.layers.*.{input,post_attention}_layernorm","model.norm")"));
    all.push_back(entry("PrepareModuleInput", "tensor", R"("model.layers.*.{self_attn,mlp}")",
                        R"~(input="Shard(1)",desired="Replicate")~"));
  }
  if (sequence && mixture) {
    all.push_back(entry("PrepareModuleOutput", "tensor", R"("model.layers.*.mlp")",
                        R"~(output="Replicate",desired="Shard(1)")~"));
  }
  all.push_back(entry("ColwiseParallel", "tensor",
                      std::string(R"("model.layers.*.self_attn.{q,k,v}_proj")") +
                          (mixture ? "" : R"(,"model.layers.*.mlp.{gate,up}_proj")")));
  all.push_back(entry("RowwiseParallel", "tensor",
                      std::string(R"("model.layers.*.self_attn.o_proj")") +
                          (mixture ? "" : R"(,"model.layers.*.mlp.down_proj")"),
                      along));
  if (sequence || classes) {
    all.push_back(entry("ColwiseParallel", "tensor", R"("lm_head")",
                        std::string(sequence ? R"~(input="Shard(1)",)~" : "") +
                            (classes ? R"~(output="Shard(-1)")~" : R"(output="Replicate")")));
  }
  if (classes) {
    all.push_back(entry("LossParallel", "tensor", "\"loss\""));
  }
  return all;
}

/// `mixture`: of a small Mixtral.
runs::Run run_of(Set set, bool mixture, const std::vector<std::string>& more) {
  const bool sharded = is_sharded(set);
  const bool split =
      has(set, tensor_parallel) || has(set, sequence_parallel) || has(set, loss_parallel);
  const std::string linear = mixture ? R"("model.layers.*.self_attn.*_proj")"
                                     : R"("model.layers.*.{self_attn,mlp}.*_proj")";
  std::vector<std::string> entries;
  if (has(set, qlora)) {
    entries.push_back(entry("QLoRA", "", linear, "rank=4,base=\"nf4\""));
  }
  if (has(set, float8)) {
    entries.push_back(
        entry("Float8", "", linear, sharded ? "all_gather=true" : "all_gather=false"));
  }
  if (split) {
    std::ranges::move(tensor_entries(set), std::back_inserter(entries));
  }
  if (has(set, pipeline)) {
    entries.push_back(entry("Pipeline", "pipe", "\".\""));
  }
  if (has(set, expert_parallel)) {
    entries.push_back(entry("ExpertParallel", "expert", R"("model.layers.*.mlp.experts")"));
  }
  if (has(set, context_parallel)) {
    entries.push_back(entry("ContextParallel", "context", "\"**.inner_attention\""));
  }
  if (has(set, offload)) {
    entries.push_back(entry("Offload", "", "\".\""));
  }
  std::string axes;
  std::string shape;
  const auto axis = [&](const char* name) {
    axes += std::string(axes.empty() ? "" : ",") + "\"" + name + "\"";
    shape += shape.empty() ? "2" : ",2";
  };
  if (has(set, pipeline)) {
    axis("pipe");
  }
  if (has(set, hybrid)) {
    axis("replicate");
    entries.push_back(entry("Replicate", "replicate", "\".\""));
  }
  if (sharded) {
    axis("shard");
    entries.push_back(entry("FSDP", "shard", R"("model.layers.*",".")"));
  }
  if (has(set, expert_parallel)) {
    axis("expert");
  }
  if (has(set, context_parallel)) {
    axis("context");
  }
  if (split) {
    axis("tensor");
  }
  std::string all;
  for (const std::string& one : entries) {
    all += (all.empty() ? "" : ",") + one;
  }
  std::vector<std::string> overrides = {"mesh.axes=[" + axes + "]", "mesh.shape=[" + shape + "]",
                                        "parallel=[" + all + "]"};
  if (has(set, bf16)) {
    overrides.emplace_back("train.precision=bf16");
  }
  if (has(set, checkpointing)) {
    overrides.emplace_back("train.activation_checkpointing=true");
  }
  if (has(set, accumulation) || has(set, pipeline)) {
    overrides.emplace_back("train.micro_batch=1");
  }
  if (mixture) {
    overrides.insert(overrides.end(),
                     {"model.family=mixtral", "model.experts=4", "model.experts_per_token=2"});
  }
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_run("one_rank.toml", overrides,
                   {"model.dim=128", "model.ffn_dim=256", "model.heads=4", "model.kv_heads=2",
                    "data.seq_len=16", "train.steps=3", "optimizer.warmup=0"});
}

}  // namespace

runs::Run run_of(Set set, const std::vector<std::string>& more) {
  return run_of(set, has(set, expert_parallel), more);
}

runs::Run one_rank_of(Set set) {
  // What changes numbers; the others must not.
  return run_of(set & (just(float8) | just(qlora) | just(bf16)), has(set, expert_parallel), {});
}

}  // namespace parallel_test
