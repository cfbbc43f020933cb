
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/config.hpp"
#include "llama_config.hpp"

import tessera.base;
import tessera.mesh;
import tessera.nn;
import tessera.optim;
import tessera.parallel;

#include "training/setup.hpp"

namespace tessera::app {

std::shared_ptr<nn::LlamaForCausalLM> make_model(const LlamaConfig& shape, double dropout) {
  nn::LlamaShape s;
  s.vocab = shape.vocab;
  s.dim = shape.dim;
  s.layers = shape.layers;
  s.heads = shape.heads;
  s.kv_heads = shape.kv_heads;
  s.head_dim = shape.head_dim;
  s.ffn_dim = shape.ffn_dim;
  s.rope_theta = shape.rope_theta;
  s.norm_eps = shape.norm_eps;
  s.tie_embeddings = shape.tie_embeddings;
  s.dropout = dropout;
  return std::make_shared<nn::LlamaForCausalLM>(s);
}

DeviceMesh make_mesh(const Config& config) {
  if (config.mesh.axes.empty()) {
    return DeviceMesh::make({"rank"}, {1});
  }
  return DeviceMesh::make(config.mesh.axes, Dims(config.mesh.shape));
}

std::vector<parallel::StyleEntry> style_entries(const Config& config) {
  std::vector<parallel::StyleEntry> entries;
  entries.reserve(config.parallel.size());
  for (const StyleConfig& style : config.parallel) {
    entries.push_back({style.style, style.axis, style.on, style.options.text, style.where});
  }
  return entries;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& config,
                                                 std::vector<nn::ParameterPointer> parameters) {
  const optim::Decay decay = config.decay == "all" ? optim::Decay::all : optim::Decay::matrices;
  if (config.name == "sgd") {
    return optim::sgd(std::move(parameters), {.momentum = config.momentum,
                                              .weight_decay = config.weight_decay,
                                              .nesterov = config.nesterov,
                                              .decay = decay});
  }
  return optim::adamw(std::move(parameters), {.beta1 = config.betas[0],
                                              .beta2 = config.betas[1],
                                              .eps = config.eps,
                                              .weight_decay = config.weight_decay,
                                              .decay = decay});
}

optim::Schedule make_schedule(const OptimizerConfig& config, std::int64_t steps) {
  return {.kind = optim::schedule_from_name(config.schedule).value(),
          .lr = config.lr,
          .warmup = config.warmup,
          .steps = steps,
          .min_ratio = config.min_lr_ratio};
}

BatchRows batch_rows(const TrainConfig& config, std::int64_t parts) {
  const std::int64_t part = config.batch / parts;
  return {part, config.micro_batch > 0 ? config.micro_batch : part};
}

double step_flops(const LlamaConfig& shape, std::int64_t batch, std::int64_t seq_len) {
  const auto tokens = static_cast<double>(batch * seq_len);
  const auto embedding = static_cast<double>(shape.vocab * shape.dim);
  // Tied embeddings are counted once among the parameters, and are a product at the head all the
  // same.
  const double products =
      static_cast<double>(shape.parameters()) - (shape.tie_embeddings ? 0 : embedding);
  const auto attention = static_cast<double>(shape.layers * shape.heads * shape.head_dim * seq_len);
  return 6 * products * tokens + 6 * attention * tokens;
}

}  // namespace tessera::app
