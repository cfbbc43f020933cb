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

std::vector<std::string> LanguageModel::input_names() const {
  return takes_documents() ? std::vector<std::string>{"input_ids", "documents", "positions"}
                           : std::vector<std::string>{"input_ids"};
}

void LanguageModel::complete() {
  loss_ = add_child<CrossEntropyLoss>("loss");
  set_names();
}

Tensor LanguageModel::logits(const Tensor& tokens, const RowDocuments& documents) {
  if (!documents.first) {
    return (*this)(tokens);
  }
  if (!takes_documents()) {
    fail_input({.thing = std::string(kind()), .wrong = "the model takes no documents"});
  }
  return (*this)(Tensors{tokens, documents.first, documents.positions})[0];
}

Tensor LanguageModel::loss_sum(const Tensor& tokens, const Tensor& targets,
                               const RowDocuments& documents) {
  return (*loss_)({logits(tokens, documents), targets})[0];
}

Tensor LanguageModel::token_losses(const Tensor& tokens, const Tensor& targets,
                                   const RowDocuments& documents) {
  return loss_->rows(logits(tokens, documents), targets);
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

Tensor run_blocks(std::span<const Child> blocks, Tensor hidden, bool recompute,
                  const Tensors& others) {
  const auto with_others = [others](const Tensor& first) {
    Tensors inputs{first};
    for (const Tensor& other : others) {
      inputs.push_back(other);
    }
    return inputs;
  };
  for (const Child& block : blocks) {
    if (recompute && grad_enabled()) {
      const Tensors in{hidden};
      hidden =
          checkpoint([kept = block.pointer(), with_others](
                         std::span<const Tensor> again) { return (*kept)(with_others(again[0])); },
                     in)[0];
    } else {
      hidden = (*block)(with_others(hidden))[0];
    }
  }
  return hidden;
}

}  // namespace tessera::nn
