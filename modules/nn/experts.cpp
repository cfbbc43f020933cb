// The experts of a mixture: their matrices, and what each of them computes.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.routed;

namespace tessera::nn {
namespace {

routed::ExpertFunction function_of(Activation activation, const GateLimits& limits,
                                   bool weigh_inputs) {
  return {.between =
              [activation, limits](std::span<const Tensor> products) {
                return products.size() == 1 ? activated(activation, products[0])
                                            : gated(activation, limits, products[0], products[1]);
              },
          .weigh_inputs = weigh_inputs};
}

/// An expert's matrix is [out, in]; grouped_mm takes [in, out].
Tensors products_with(const Tensor& rows, const routed::ExpertMatrices& own, const Tensor& counts,
                      std::int64_t expected) {
  Tensors results;
  for (const Tensor& matrix : own.matrices) {
    results.push_back(ops::grouped_mm(rows, ops::transpose(matrix, 1, 2), counts, expected));
  }
  return results;
}

}  // namespace

Experts::Experts(const MixtureOptions& options)
    : gated_(options.expert.gated),
      activation_(options.expert.activation),
      limits_(options.expert.limits),
      weigh_inputs_(options.weigh_inputs) {
  options.check();
  attach<routed::ExpertFunction>() = function_of(activation_, limits_, weigh_inputs_);
  const std::int64_t dim = options.latent_dim > 0 ? options.latent_dim : options.expert.dim;
  const auto add = [&](const char* name, std::int64_t out, std::int64_t in) {
    const Initialization normal{Initialization::Kind::normal, options.expert.standard_deviation};
    add_parameter(name, std::make_shared<Parameter>(Dims{options.experts, out, in},
                                                    options.expert.dtype, normal));
  };
  if (gated_) {
    add("gate_proj", options.expert.width, dim);
  }
  add("up_proj", options.expert.width, dim);
  add("down_proj", dim, options.expert.width);
  const auto add_bias = [&](const char* name, std::int64_t out) {
    add_parameter(name, std::make_shared<Parameter>(Dims{options.experts, out},
                                                    options.expert.dtype, Initialization{}));
  };
  if (options.expert.bias) {
    if (gated_) {
      add_bias("gate_proj_bias", options.expert.width);
    }
    add_bias("up_proj_bias", options.expert.width);
    add_bias("down_proj_bias", dim);
  }
  attach<LayerSplits>().declared = [this] {
    LayerSplit experts{.name = "experts"};
    LayerSplit rows{
        .name = "rows", .inputs = {Replicate(), Replicate(), Replicate()}, .output = Partial()};
    for (const auto& [name, parameter] : parameters()) {
      experts.parameters.push_back({parameter, Shard(0)});
      if (name != "down_proj_bias") {
        rows.parameters.push_back({parameter, Shard(name == "down_proj" ? 2 : 1)});
      }
    }
    return std::vector{std::move(experts), std::move(rows)};
  };
}

std::string_view Experts::kind() const { return "Experts"; }
std::vector<std::string> Experts::input_names() const {
  return {"hidden_states", "weights", "experts", "kept"};
}

void Experts::compute_beside(Beside beside) { beside_ = std::move(beside); }

Tensors Experts::forward(const Tensors& inputs) {
  const Beside beside = std::exchange(beside_, nullptr);
  routed::ExpertLayer layer{
      .name = name(), .function = attached<routed::ExpertFunction>(), .products = products_with};
  const std::size_t matrices = gated_ ? 3 : 2;
  for (const auto& [name, parameter] : parameters()) {
    (layer.matrices.size() < matrices ? layer.matrices : layer.biases).push_back(parameter->use());
  }
  return {routed::expert_sums({.hidden = input(inputs, 0),
                               .weights = input(inputs, 1),
                               .chosen = input(inputs, 2),
                               .kept = inputs.size() > 3 ? inputs[3] : Tensor()},
                              layer, beside)};
}

}  // namespace tessera::nn
