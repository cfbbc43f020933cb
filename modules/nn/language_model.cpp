module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {

namespace {

/// The targets [B, T] of the tokens `shift` later in the row, and in the same document.
Tensor later_targets(const Tensor& targets, const RowDocuments& documents, std::int64_t shift,
                     std::int64_t ignored) {
  const NoGrad constant;
  const Tensor& own = local_of(targets);  // (B, T)
  if (targets.is_distributed() && own.size(1) != targets.size(1)) {
    fail_input({.thing = "tokens after the next one",
                .wrong = "their losses need all tokens of a row on a rank",
                .advice = "remove the entry that splits rows, or set model.further_layers = 0"});
  }
  const std::int64_t count = own.size(1);
  const std::int64_t moved = std::min(shift, count);
  const auto later = [&](const Tensor& x) { return ops::narrow(x, 1, moved, count - moved); };
  const Tensor none =
      full({own.size(0), moved}, static_cast<double>(ignored), own.dtype(), own.device());
  Tensor there = later(own);
  if (documents.first) {
    const Tensor& first = local_of(documents.first);
    const Tensor same = ops::eq(ops::narrow(first, 1, 0, count - moved), later(first));
    there =
        ops::where(same, there, full({}, static_cast<double>(ignored), own.dtype(), own.device()));
  }
  const Tensor all = ops::cat(Tensors{there, none}, 1);
  return targets.is_distributed() ? from_local(all, targets.layout(), targets.shape()) : all;
}

}  // namespace

LanguageModel* as_language_model(Module& module) { return dynamic_cast<LanguageModel*>(&module); }

std::vector<std::string> LanguageModel::input_names() const {
  return takes_documents() ? std::vector<std::string>{"input_ids", "documents", "positions"}
                           : std::vector<std::string>{"input_ids"};
}

void LanguageModel::complete(Child head, double softcap) {
  head_ = head;
  softcap_ = softcap;
  loss_ = add_child<CrossEntropyLoss>("loss");
  set_names();
}

Tensors LanguageModel::forward(const Tensors& inputs) {
  Tensor hidden = hidden_states(inputs);
  const Tensors further = std::exchange(further_states_, {});
  if (!pieces_.ends()) {
    return {std::move(hidden)};
  }
  if (cache_ != nullptr) {
    hidden = cache_->scored(hidden);
  }
  if (gives_states_) {
    return {std::move(hidden)};
  }
  Tensors all{soft_capped((*head_)(hidden), softcap_)};
  for (const Tensor& states : further) {
    all.push_back(soft_capped((*head_)(states), softcap_));
  }
  return all;
}

Tensor LanguageModel::hidden_states(const Tensors& /*inputs*/) {
  fail({.thing = std::string(kind()),
        .wrong = "the family has neither hidden_states nor forward",
        .advice = "override one of them"});
}

void LanguageModel::set_head_rows(std::int64_t rows) {
  if (rows < 0) {
    fail_input({.thing = "head_rows",
                .wrong = "it is negative",
                .expected = "at least 0",
                .got = fmt::format("{}", rows)});
  }
  if (rows > 0 && !head_) {
    fail_input({.thing = "head_rows",
                .wrong = fmt::format("the family of {} does not say which layer is its head, so "
                                     "its logits cannot be computed in parts",
                                     kind()),
                .advice = "set it to 0"});
  }
  head_rows_ = rows;
}

Tensors LanguageModel::inputs_of(const Tensor& tokens, const RowDocuments& documents) const {
  const Tensor& first = entering_ ? entering_ : tokens;
  if (!documents.first) {
    return {first};
  }
  if (!takes_documents()) {
    fail_input({.thing = std::string(kind()), .wrong = "the model takes no documents"});
  }
  return {first, documents.first, documents.positions};
}

void LanguageModel::check_head() const {
  if (!head_) {
    fail_input({.thing = std::string(kind()),
                .wrong = "the family does not say which layer is its head, so its last hidden "
                         "states are not known"});
  }
}

Tensor LanguageModel::last_states(const Tensor& tokens) {
  check_head();
  gives_states_ = true;
  try {
    Tensor states = (*this)(Tensors{tokens})[0];
    gives_states_ = false;
    return states;
  } catch (...) {
    gives_states_ = false;
    throw;
  }
}

Tensor LanguageModel::logits_of(const Tensor& last_states) {
  check_head();
  return soft_capped((*head_)(last_states), softcap_);
}

Tensor LanguageModel::states(const Tensor& tokens, const RowDocuments& documents) {
  row_terms_ = Tensor();
  const Tensor hidden = (*this)(inputs_of(tokens, documents))[0];
  if (row_terms_) {
    fail_input({.thing = std::string(kind()),
                .wrong = "the losses that balance experts are computed at the end of the model, "
                         "and a stage passes on nothing but hidden states",
                .advice = "balance by experts.bias_rate, or remove the entry that divides the "
                          "model"});
  }
  return hidden;
}

PiecesScope::PiecesScope(LanguageModel& model, PieceRange pieces, Tensor entering)
    : model_(model), before_(model.pieces_), entering_before_(model.entering_) {
  if (model.pieces().empty()) {
    fail({.thing = std::string(model.kind()),
          .wrong = "the family does not say how it is a chain of pieces",
          .advice = "override pieces()"});
  }
  model.pieces_ = pieces;
  model.entering_ = std::move(entering);
}

PiecesScope::~PiecesScope() {
  model_.pieces_ = before_;
  model_.entering_ = std::move(entering_before_);
}

Tensor LanguageModel::loss_sum(const Tensor& tokens, const Tensor& targets,
                               const RowDocuments& documents) {
  row_terms_ = Tensor();
  Tensor loss;
  std::vector<LossTerm> terms;
  if (head_rows_ > 0) {
    loss = ops::sum(losses_by_parts(inputs_of(tokens, documents), targets));
    if (!std::exchange(further_states_, {}).empty()) {
      fail_input({.thing = "head_rows",
                  .wrong = "losses of tokens after the next one need whole logits",
                  .advice = "set it to 0, or set model.further_layers = 0"});
    }
  } else {
    const Tensors outputs = (*this)(inputs_of(tokens, documents));
    loss = (*loss_)({outputs[0], targets})[0];
    if (Tensor further = further_losses(outputs, targets, documents)) {
      terms.push_back({"further tokens", std::move(further)});
    }
  }
  if (Tensor of_rows = row_terms_of(loss, targets)) {
    terms.push_back({"experts", std::move(of_rows)});
  }
  for (const LossTerm& term : terms) {
    loss = ops::add(loss, term.sum);
  }
  if (watch_) {
    const NoGrad constant;
    watch_(terms, detached(loss));
  }
  return loss;
}

Tensor LanguageModel::further_losses(const Tensors& outputs, const Tensor& targets,
                                     const RowDocuments& documents) {
  Tensor sum;
  for (std::size_t depth = 1; depth < outputs.size(); ++depth) {
    const auto shift = static_cast<std::int64_t>(depth);
    const Tensor later = later_targets(targets, documents, shift, loss_->ignore_index());
    const Tensor loss = (*loss_)({outputs[depth], later})[0];
    sum = sum ? ops::add(sum, loss) : loss;
  }
  return sum ? ops::mul_scalar(sum, further_weight_ / static_cast<double>(outputs.size() - 1))
             : sum;
}

Tensor LanguageModel::row_terms_of(const Tensor& loss, const Tensor& targets) {
  const Tensor terms = std::exchange(row_terms_, Tensor());
  if (!terms) {
    return {};
  }
  Tensor trained;  // tokens of each row
  {
    const NoGrad constant;
    const auto ignored = static_cast<double>(loss_->ignore_index());
    trained = ops::sum(ops::cast(ops::ne(targets, ignored), terms.dtype()), {1});
    if (terms.is_distributed()) {
      trained = redistribute(trained, terms.layout());
    }
  }
  const Tensor sum = ops::cast(ops::sum(ops::mul(terms, trained)), loss.dtype());
  return loss.is_distributed() ? redistribute(sum, loss.layout()) : sum;
}

Tensor LanguageModel::token_losses(const Tensor& tokens, const Tensor& targets,
                                   const RowDocuments& documents) {
  Tensor losses = head_rows_ == 0 ? loss_->rows((*this)(inputs_of(tokens, documents))[0], targets)
                                  : losses_by_parts(inputs_of(tokens, documents), targets);
  row_terms_ = Tensor();
  further_states_.clear();
  return losses;
}

Tensor LanguageModel::losses_by_parts(const Tensors& inputs, const Tensor& targets) {
  Module& head = *head_;
  if (dynamic_cast<const Linear*>(&head) == nullptr) {
    fail_input({.thing = fmt::format("module '{}'", head.name()),
                .wrong = "its logits cannot be computed in parts",
                .expected = "a Linear",
                .got = std::string(head.kind()),
                .advice = "set head_rows = 0, or leave it out of the style that replaced it"});
  }
  const auto of_losses = [&](const Tensor& hidden, const Tensors& given) {
    const auto& own = head.parameters();
    return Tensors{linear_cross_entropy(
        hidden, own[0].second->use(), own.size() > 1 ? own[1].second->use() : Tensor(), given[1],
        {.rows = head_rows_,
         .ignore_index = loss_->ignore_index(),
         .loss_parallel = loss_->takes_classes_of_ranks(),
         .softcap = softcap_,
         .check = [this](const Tensor& part) { check_part(part); }})};
  };
  return call_beyond(*this, inputs, [&](const Tensors& seen) {
    return call_beyond(head, {hidden_states(seen)}, [&](const Tensors& hidden) {
      return loss_->call({Tensor(), targets},
                         [&](const Tensors& given) { return of_losses(hidden[0], given); });
    });
  })[0];
}

void LanguageModel::check_part(const Tensor& part) {
  const Tensor converted =
      convert_outputs(*this, {}, convert_outputs(*head_, {}, Tensors{part}))[0];
  if (part.is_distributed() && converted.layout() != part.layout()) {
    fail_input({.thing = fmt::format("module '{}'", head_->name()),
                .wrong = "its logits are brought into another layout before the loss, so they "
                         "cannot be computed in parts",
                .expected = to_string(part.layout()),
                .got = to_string(converted.layout()),
                .advice = "leave them as the layer computes them and apply LossParallel to "
                          "'loss', or set head_rows = 0"});
  }
}

void LanguageModel::set_cache(KeyValueCache* cache) {
  std::vector<AttentionLayer*> attentions;
  std::vector<RecurrentLayer*> recurrent;
  for (Module* const module : all_modules(*this)) {
    if (auto* const attention = dynamic_cast<AttentionLayer*>(module)) {
      attentions.push_back(attention);
    } else if (auto* const layer = dynamic_cast<RecurrentLayer*>(module)) {
      recurrent.push_back(layer);
    }
  }
  if (cache != nullptr && cache->axis >= 0 && !recurrent.empty()) {
    fail({.thing = std::string(kind()),
          .wrong = "a recurrent layer passes its state from token to token, and a rank needs all "
                   "tokens for it",
          .advice = "use an axis that splits heads instead of texts"});
  }
  if (std::ssize(attentions) + std::ssize(recurrent) != layers_) {
    fail({.thing = std::string(kind()),
          .wrong = "a cache needs an AttentionLayer or a RecurrentLayer in each layer",
          .expected = fmt::format("{}", layers_),
          .got = fmt::format("{}", attentions.size() + recurrent.size()),
          .advice = "generate with the model before its attention was replaced"});
  }
  // Layers with keys of another one have its cache.
  std::vector<std::size_t> places;
  std::size_t count = 0;
  for (const AttentionLayer* const attention : attentions) {
    const std::int64_t source = attention->keys_of();
    places.push_back(source < 0 ? count++ : places.at(static_cast<std::size_t>(source)));
  }
  if (cache != nullptr) {
    cache->layers.resize(count, AttentionCache(cache->axis, cache->kept));
    cache->states.resize(recurrent.size());
  }
  cache_ = cache;
  for (std::size_t i = 0; i < recurrent.size(); ++i) {
    recurrent[i]->set_state(cache == nullptr ? nullptr : &cache->states[i]);
  }
  for (std::size_t i = 0; i < attentions.size(); ++i) {
    attentions[i]->set_cache(cache == nullptr ? nullptr : &cache->layers[places[i]]);
  }
}

Tensor run_blocks(std::span<const Child> blocks, Tensor hidden, bool recompute,
                  const Tensors& others, Tensor* terms) {
  const auto with_others = [others](const Tensor& first) {
    Tensors inputs{first};
    for (const Tensor& other : others) {
      inputs.push_back(other);
    }
    return inputs;
  };
  for (const Child& block : blocks) {
    Tensors out;
    if (recompute && grad_enabled()) {
      const Tensors in{hidden};
      out =
          checkpoint([kept = block.pointer(), with_others](
                         std::span<const Tensor> again) { return (*kept)(with_others(again[0])); },
                     in);
    } else {
      out = (*block)(with_others(hidden));
    }
    hidden = out[0];
    if (terms != nullptr && out.size() > 1) {
      *terms = *terms ? ops::add(*terms, out[1]) : out[1];
    }
  }
  return hidden;
}

}  // namespace tessera::nn
