// What a run may combine, and a small Llama's run with it. Include it after the imports that
// training/trainer.hpp needs.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace parallel_test {

enum Feature : unsigned {
  fully_sharded,
  hybrid,
  tensor_parallel,
  sequence_parallel,
  loss_parallel,
  context_parallel,
  expert_parallel,
  pipeline,
  float8,
  offload,
  qlora,
  bf16,
  checkpointing,
  accumulation,
  features
};
inline constexpr std::array<std::string_view, features> feature_names = {"FSDP",
                                                                         "hybrid",
                                                                         "tensor parallel",
                                                                         "sequence parallel",
                                                                         "loss parallel",
                                                                         "context parallel",
                                                                         "expert parallel",
                                                                         "pipeline",
                                                                         "Float8",
                                                                         "Offload",
                                                                         "QLoRA",
                                                                         "bf16",
                                                                         "activation checkpointing",
                                                                         "accumulation"};

/// A set of features: bit i is feature i.
using Set = unsigned;
constexpr Set just(Feature one) { return 1U << one; }
inline bool has(Set set, Feature one) { return (set & just(one)) != 0; }
/// Offload needs something that shards.
inline bool is_sharded(Set set) {
  return has(set, fully_sharded) || has(set, hybrid) || has(set, offload);
}
std::vector<Feature> members(Set set);
std::string text_of(Set set);

/// Three steps of a small Llama with these features, and these overrides of its config; with expert
/// parallel, of a small Mixtral.
tessera::runs::Run run_of(Set set, const std::vector<std::string>& overrides = {});
/// The run on one rank whose losses `run_of(set)` must have.
tessera::runs::Run one_rank_of(Set set);

}  // namespace parallel_test
