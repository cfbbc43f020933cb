module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.hub;

namespace tessera::text {
namespace {

/// Tokens that follow one another and have the same adapter.
struct AdapterRun {
  std::int64_t adapter = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::vector<AdapterRun> runs_of(std::span<const std::int64_t> adapters) {
  std::vector<AdapterRun> runs;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (runs.empty() || runs.back().adapter != adapters[i]) {
      runs.push_back({.adapter = adapters[i], .first = static_cast<std::int64_t>(i)});
    }
    ++runs.back().count;
  }
  std::erase_if(runs, [](const AdapterRun& run) { return run.adapter == 0; });
  return runs;
}

/// Of an update, what this rank has.
struct UpdatePart {
  Tensor a;  // [rank, in]
  Tensor b;  // [out, rank]
};

/// A layer with a weight of two dims.
struct AdapterLayer {
  std::string name;
  Dims shape;                      // of the weight, on all ranks
  std::function<Layout()> layout;  // of the weight, when styles have been applied
  bool takes = false;              // it is called once for all tokens
  std::map<std::int64_t, UpdatePart> updates = {};
  nn::HookHandle hook = {};
};

/// A layer with such a weight; without a shape where it has none.
AdapterLayer layer_of(nn::Module& module) {
  AdapterLayer layer{.name = module.name(), .shape = {}, .layout = nullptr};
  for (const auto& [name, parameter] : module.parameters()) {
    if (name == "weight" && parameter->value.shape().size() == 2) {
      layer.shape = parameter->value.shape();
      layer.layout = [own = parameter] {
        return own->value.is_distributed() ? own->value.layout() : Layout();
      };
    }
  }
  for (const nn::PackedWeight& packed : nn::packed_weights_of(module)) {
    if (packed.shape.size() == 2) {
      layer.shape = packed.shape;
      layer.layout = packed.layout;
    }
  }
  return layer;
}

}  // namespace

struct AdapterLayers::State {
  std::vector<std::unique_ptr<AdapterLayer>> layers;
  bool in_batch = false;
  bool learns = false;
  std::int64_t tokens = 0;
  std::int64_t scored = 0;
  std::vector<AdapterRun> of_tokens;
  std::vector<AdapterRun> of_scored;

  void apply(AdapterLayer& layer, const Tensor& input, const Tensor& output) const {
    if (!in_batch || (!learns && layer.updates.empty())) {
      return;
    }
    const Tensor& x = local_of(input);
    const std::int64_t features = std::max<std::int64_t>(x.size(-1), 1);
    const std::int64_t rows = x.numel() / features;
    const bool of_all = rows == tokens;
    if (learns) {
      layer.takes = is_floating(x.dtype()) && (of_all || rows == scored);
      return;
    }
    require(of_all || rows == scored, "adapter: a layer is computed for other tokens");
    for (const AdapterRun& run : of_all ? of_tokens : of_scored) {
      if (const auto found = layer.updates.find(run.adapter); found != layer.updates.end()) {
        add_update(found->second, run, ops::view(ops::contiguous(x), {rows, features}),
                   local_of(output));
      }
    }
  }

  static void add_update(const UpdatePart& update, const AdapterRun& run, const Tensor& x,
                         const Tensor& output) {
    const Tensor rows = ops::narrow(x, 0, run.first, run.count);
    const Tensor added = ops::linear(ops::linear(rows, update.a), update.b);
    const Tensor y = ops::view(output, {x.size(0), output.size(-1)});
    static_cast<void>(ops::add_(ops::narrow(y, 0, run.first, run.count), added));
  }
};

AdapterLayers::AdapterLayers(nn::LanguageModel& model) : state_(std::make_unique<State>()) {
  for (nn::Module* const module : nn::all_modules(model)) {
    AdapterLayer layer = layer_of(*module);
    if (layer.shape.size() != 2 || !module->children().empty()) {
      continue;
    }
    state_->layers.push_back(std::make_unique<AdapterLayer>(std::move(layer)));
    AdapterLayer& own = *state_->layers.back();
    own.hook = module->add_hook(
        [state = state_.get(), &own](nn::Module&, const Tensors& inputs, Tensors& outputs) {
          state->apply(own, inputs[0], outputs[0]);
        });
  }
}

AdapterLayers::~AdapterLayers() {
  for (const auto& layer : state_->layers) {
    layer->hook.remove();
  }
}

AdapterLayers::Batch::Batch(AdapterLayers* layers, const nn::RaggedBatch& batch,
                            std::span<const std::int64_t> adapters, bool learns)
    : layers_(layers) {
  if (layers_ == nullptr) {
    return;
  }
  std::vector<std::int64_t> of_tokens;
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    of_tokens.insert(of_tokens.end(), static_cast<std::size_t>(batch.rows[row].count),
                     row < adapters.size() ? adapters[row] : 0);
  }
  std::vector<std::int64_t> of_scored;
  for (const std::int64_t token : batch.scored) {
    of_scored.push_back(of_tokens[static_cast<std::size_t>(token)]);
  }
  State& state = *layers_->state_;
  state.in_batch = true;
  state.learns = learns;
  state.tokens = std::ssize(of_tokens);
  state.scored = std::ssize(of_scored);
  state.of_tokens = runs_of(of_tokens);
  state.of_scored = runs_of(of_scored);
}

AdapterLayers::Batch::~Batch() {
  if (layers_ != nullptr) {
    layers_->state_->in_batch = false;
  }
}

std::vector<std::int64_t> AdapterLayers::numbers_of(std::span<const hub::LayerUpdate> updates,
                                                    const std::string& adapter) const {
  std::vector<std::int64_t> numbers;
  std::vector<std::string> wrong;
  for (const hub::LayerUpdate& update : updates) {
    const auto found = std::ranges::find(state_->layers, update.layer,
                                         [](const auto& layer) { return layer->name; });
    const bool fits = found != state_->layers.end() && (*found)->takes &&
                      (*found)->shape == Dims{update.b.size(0), update.a.size(1)};
    if (fits) {
      numbers.push_back(found - state_->layers.begin());
    } else {
      wrong.push_back(update.layer);
    }
  }
  if (!wrong.empty()) {
    fail_input({.thing = adapter,
                .wrong = "the model does not compute these layers as one product for all texts of "
                         "a step: " +
                         join_words(wrong),
                .advice = "merge the adapter: --adapter FOLDER"});
  }
  return numbers;
}

const Dims& AdapterLayers::shape(std::int64_t layer) const {
  return state_->layers.at(static_cast<std::size_t>(layer))->shape;
}

void AdapterLayers::add(std::int64_t adapter, std::int64_t layer, const Tensor& a,
                        const Tensor& b) {
  AdapterLayer& own = *state_->layers.at(static_cast<std::size_t>(layer));
  const Layout layout = own.layout();
  const LocalPart part =
      layout ? local_part(own.shape, layout, current_rank()) : LocalPart{{0, 0}, own.shape};
  own.updates[adapter] = {.a = ops::contiguous(ops::narrow(a, 1, part.offset[1], part.shape[1])),
                          .b = ops::contiguous(ops::narrow(b, 0, part.offset[0], part.shape[0]))};
}

void AdapterLayers::drop(std::int64_t adapter) {
  for (const auto& layer : state_->layers) {
    layer->updates.erase(adapter);
  }
}

}  // namespace tessera::text
