#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;

#include "stored_sizes.hpp"

namespace tessera::app {
namespace {

/// The number of different N in names "PREFIXmodel.layers.N.".
std::int64_t stored_layers(const TensorSource& stored, const std::string& prefix) {
  const std::string begin = prefix + "model.layers.";
  std::set<std::int64_t> layers;
  for (auto it = stored.tensors().lower_bound(begin);
       it != stored.tensors().end() && it->first.starts_with(begin); ++it) {
    const std::string_view rest = std::string_view(it->first).substr(begin.size());
    std::int64_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (error == std::errc() && end != rest.data() + rest.size() && *end == '.') {
      layers.insert(layer);
    }
  }
  return std::ssize(layers);
}

}  // namespace

void check_stored_sizes(const LlamaConfig& c, const TensorSource& stored, const std::string& prefix,
                        const std::string& name) {
  struct Expected {
    const char* tensor;
    const char* keys;
    std::int64_t rows;
  };
  const Expected all[] = {{"model.embed_tokens.weight", "vocab_size", c.vocab},
                          {"model.layers.0.self_attn.q_proj.weight",
                           "num_attention_heads times head_dim", c.heads * c.head_dim},
                          {"model.layers.0.self_attn.k_proj.weight",
                           "num_key_value_heads times head_dim", c.kv_heads * c.head_dim},
                          {"model.layers.0.mlp.gate_proj.weight", "intermediate_size", c.ffn_dim}};
  std::vector<std::string> problems;
  if (const std::int64_t layers = stored_layers(stored, prefix); layers != c.layers) {
    problems.push_back(
        fmt::format("num_hidden_layers is {}, but the weights have {} layers", c.layers, layers));
  }
  for (const Expected& one : all) {
    const auto found = stored.tensors().find(prefix + one.tensor);
    if (found == stored.tensors().end()) {
      problems.push_back(fmt::format("the weights have no tensor {}", one.tensor));
      continue;
    }
    const Dims expected = {one.rows, c.dim};
    if (!(found->second.shape == expected)) {
      problems.push_back(fmt::format("{} is {} and hidden_size {}, but {} has shape {}", one.keys,
                                     one.rows, c.dim, one.tensor, to_string(found->second.shape)));
    }
  }
  if (!problems.empty()) {
    fail_input({.thing = name,
                .wrong = fmt::format("does not describe the stored weights: {}",
                                     fmt::join(problems, "; "))});
  }
}

}  // namespace tessera::app
