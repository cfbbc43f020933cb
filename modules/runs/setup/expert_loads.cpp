module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.nn;
import tessera.parallel;

namespace tessera::runs {
namespace {

/// Whether this rank is the first one of those that have the same tokens.
bool is_first_with_its_tokens(const parallel::ParallelPlan& plan) {
  const auto splits = [&](int axis) {
    return std::ranges::find(plan.batch_axes(), axis) != plan.batch_axes().end() ||
           std::ranges::find(plan.sequence_axes(), axis) != plan.sequence_axes().end();
  };
  for (int axis = 0; axis < plan.mesh().ndim(); ++axis) {
    if (!splits(axis) && plan.mesh().coordinate_of(current_rank(), axis) > 0) {
      return false;
    }
  }
  return true;
}

void add_values(std::vector<double>& numbers, const nn::BufferPointer& buffer, bool counts) {
  if (!counts) {
    numbers.resize(numbers.size() + static_cast<std::size_t>(buffer->initial.numel()));
    return;
  }
  const Tensor values = ops::to_device(local_of(buffer->value), cpu);
  const std::int64_t* const data = values.data<std::int64_t>();
  numbers.insert(numbers.end(), data, data + values.numel());
}

}  // namespace

double largest_load(std::span<const LayerLoads> loads) {
  double largest = 0;
  for (const LayerLoads& one : loads) {
    const auto all =
        static_cast<double>(std::accumulate(one.tokens.begin(), one.tokens.end(), std::int64_t{0}));
    if (all > 0) {
      const auto most = static_cast<double>(*std::ranges::max_element(one.tokens));
      largest = std::max(largest, most * static_cast<double>(one.tokens.size()) / all);
    }
  }
  return largest;
}

double dropped_share(std::span<const LayerLoads> loads) {
  double dropped = 0;
  double all = 0;
  for (const LayerLoads& one : loads) {
    dropped += static_cast<double>(one.dropped);
    all +=
        static_cast<double>(std::accumulate(one.tokens.begin(), one.tokens.end(), std::int64_t{0}));
  }
  return all > 0 ? dropped / all : 0;
}

std::string loads_text(std::span<const LayerLoads> loads, std::size_t layers) {
  static constexpr const char* heights[] = {"_", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string text = "tokens of each expert in the last step (half a bar: the mean of the layer)";
  const std::size_t shown = std::min(layers, loads.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const LayerLoads& one = loads[i * loads.size() / shown];
    const auto all =
        static_cast<double>(std::accumulate(one.tokens.begin(), one.tokens.end(), std::int64_t{0}));
    text += fmt::format("\n  {}  ", one.layer);
    for (const std::int64_t tokens : one.tokens) {
      const double share =
          all > 0 ? static_cast<double>(tokens) * static_cast<double>(one.tokens.size()) / all : 0;
      const double height = tokens == 0 ? 0 : std::clamp(std::round(share * 4), 1.0, 8.0);
      text += heights[static_cast<std::size_t>(height)];
    }
    const auto [least, most] = std::ranges::minmax_element(one.tokens);
    text += fmt::format("  {} to {}", *least, *most);
  }
  return text;
}

ExpertLoads::ExpertLoads(nn::Module& model, const parallel::ParallelPlan& plan)
    : counts_(is_first_with_its_tokens(plan)) {
  for (const nn::WholeModule& whole : nn::whole_modules(model)) {
    auto* const mixture = dynamic_cast<nn::SparseMixture*>(whole.module);
    if (mixture != nullptr && mixture->tokens() != nullptr) {
      layers_.push_back({mixture->name(), mixture, whole.absent});
      numbers_ += static_cast<std::size_t>(mixture->tokens()->initial.numel()) + 1;
    }
  }
  before_.resize(numbers_);
}

std::vector<LayerLoads> ExpertLoads::read(collective::World& world) {
  if (layers_.empty()) {
    return {};
  }
  std::vector<double> mine;
  for (const Layer& layer : layers_) {
    const bool counts = counts_ && !layer.absent;
    add_values(mine, layer.mixture->tokens(), counts);
    add_values(mine, layer.mixture->dropped(), counts);
  }
  std::vector<double> all(numbers_);
  world.everyone().all_reduce(mine.data(), all.data(), static_cast<std::int64_t>(numbers_),
                              DType::f64);
  std::vector<LayerLoads> loads;
  std::size_t at = 0;
  const auto next = [&] {
    const double since = all[at] - before_[at];
    ++at;
    return static_cast<std::int64_t>(since);
  };
  for (const Layer& layer : layers_) {
    LayerLoads one{.layer = layer.name, .tokens = {}};
    for (std::int64_t i = 0; i < layer.mixture->tokens()->initial.numel(); ++i) {
      one.tokens.push_back(next());
    }
    one.dropped = next();
    loads.push_back(std::move(one));
  }
  before_ = std::move(all);
  return loads;
}

}  // namespace tessera::runs
