module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.autograd;

namespace tessera::nn {

std::vector<std::string> LanguageModel::input_names() const { return {"input_ids"}; }

void LanguageModel::complete() {
  loss_ = add_child<CrossEntropyLoss>("loss");
  set_names();
}

Tensor LanguageModel::loss_sum(const Tensor& tokens, const Tensor& targets) {
  return (*loss_)({(*this)(tokens), targets})[0];
}

void LanguageModel::set_cache(KeyValueCache* cache) {
  std::vector<Attention*> attentions;
  for (Module* const module : all_modules(*this)) {
    if (auto* const attention = dynamic_cast<Attention*>(module)) {
      attentions.push_back(attention);
    }
  }
  if (std::ssize(attentions) != layers_) {
    fail({.thing = std::string(kind()),
          .wrong = "a cache needs an Attention in each layer",
          .expected = fmt::format("{}", layers_),
          .got = fmt::format("{}", attentions.size()),
          .advice = "generate with the model before its attention was replaced"});
  }
  if (cache != nullptr) {
    cache->layers.resize(attentions.size());
  }
  for (std::size_t i = 0; i < attentions.size(); ++i) {
    attentions[i]->set_cache(cache == nullptr ? nullptr : &cache->layers[i]);
  }
}

Tensor run_blocks(std::span<const Child> blocks, Tensor hidden, bool recompute) {
  for (const Child& block : blocks) {
    if (recompute && grad_enabled()) {
      const Tensors in{hidden};
      hidden = checkpoint([kept = block.pointer()](
                              std::span<const Tensor> again) { return (*kept)(Tensors{again[0]}); },
                          in)[0];
    } else {
      hidden = (*block)(hidden);
    }
  }
  return hidden;
}

}  // namespace tessera::nn
