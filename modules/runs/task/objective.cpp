module;
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;
import tessera.train;
import tessera.hub;

namespace tessera::runs {
namespace {

/// The log-probability of each sequence's trained tokens, [sequences], from local inputs and
/// targets.
Tensor log_probabilities(nn::LanguageModel& model, const parallel::ParallelPlan& plan,
                         const Tensors& rows) {
  const Tensor losses = model.token_losses(plan.batch_of(rows[0]), plan.batch_of(rows[1]));
  // What follows is not linear: the ranks that share a sequence add their terms first.
  return ops::mul_scalar(redistribute(ops::sum(losses, {-1}), plan.row_layout()), -1.0);
}

/// The sums of both rewards, and the number of pairs in which the chosen one is greater.
Tensors measured_sums(const Tensor& chosen, const Tensor& rejected) {
  const NoGrad constant;
  const Tensor right = ops::cast(ops::gt(chosen, rejected), chosen.dtype());
  return {ops::sum(chosen), ops::sum(rejected), ops::sum(right)};
}

}  // namespace

Tensor Objective::states(const Tensors& /*rows*/) {
  fail("the objective is not computed by stages of a model");
}

namespace {

nn::RowDocuments documents_of(const Tensors& rows) {
  return rows.size() > 2 ? nn::RowDocuments{rows[2], rows[3]} : nn::RowDocuments();
}

}  // namespace

StepSums NextToken::sums(const Tensors& rows) {
  return loss_sum(model_, plan_, rows[0], rows[1], documents_of(rows));
}

void NextToken::watch_losses(LossWatch watch) {
  hook_.remove();
  losses_ = Tensor();
  model_.watch_loss_terms(nullptr);
  if (!watch) {
    return;
  }
  // Beside the loss that the step computes, of the same logits; of logits in parts the module has
  // the losses themselves. The first call is that of the next tokens.
  hook_ = model_.loss().add_hook(
      [this](nn::Module& /*module*/, const Tensors& inputs, Tensors& outputs) {
        if (losses_) {
          return;
        }
        const NoGrad constant;
        nn::CrossEntropyLoss& loss = model_.loss();
        losses_ = !inputs[0] ? detached(outputs[0])
                             : ops::cross_entropy_rows(inputs[0], inputs[1], loss.ignore_index(),
                                                       loss.takes_classes_of_ranks());
      });
  model_.watch_loss_terms(
      [this, told = std::move(watch)](std::span<const nn::LossTerm> terms, const Tensor& sum) {
        told({.losses = std::exchange(losses_, Tensor()),
              .terms = {terms.begin(), terms.end()},
              .sum = sum});
      });
}

Tensor NextToken::states(const Tensors& rows) {
  return hidden_states(model_, plan_, rows[0], documents_of(rows));
}

double NextToken::weight(std::int64_t /*rows*/, std::int64_t tokens) const {
  return static_cast<double>(tokens);
}

Measures NextToken::measures(std::span<const double> /*measured*/) const { return {}; }

namespace {

/// Which half of the hidden states that enter a stage: the model's, or the reference's.
enum class Half : std::uint8_t { model, reference };

/// Calls f; within a stage of `divided`, `model` begins with this half of what that one would begin
/// with, and computes the same pieces.
Tensor with_half(const nn::LanguageModel& divided, nn::LanguageModel& model, Half half,
                 const std::function<Tensor()>& f) {
  const nn::PieceRange pieces = divided.selected();
  if (pieces == nn::PieceRange()) {
    return f();
  }
  Tensor own;
  if (const Tensor& both = divided.entering(); both) {
    const std::int64_t dim = both.size(2) / 2;
    own = ops::narrow(both, 2, half == Half::model ? 0 : dim, dim);
  }
  const nn::PiecesScope scope(model, pieces, own);
  return f();
}

}  // namespace

Tensor Preferences::of_model(const OfModel& f) {
  return with_half(model_, model_, Half::model, [&] { return f(model_, plan_); });
}

Tensor Preferences::of_reference(const OfModel& f) {
  const NoGrad constant;
  if (reference_ != nullptr) {
    return with_half(model_, language_model(reference_->model()), Half::reference,
                     [&] { return f(language_model(reference_->model()), reference_->plan()); });
  }
  const nn::EvaluationScope evaluation(model_);
  const nn::WithoutUpdatesScope without(model_);
  return with_half(model_, model_, Half::reference, [&] { return f(model_, plan_); });
}

Tensor Preferences::states(const Tensors& rows) {
  const auto states_of = [&](nn::LanguageModel& model, const parallel::ParallelPlan& plan) {
    return hidden_states(model, plan, rows[0], {});
  };
  const Tensor reference = of_reference(states_of);
  return ops::cat({{of_model(states_of), reference}}, 2);
}

StepSums Preferences::sums(const Tensors& rows) {
  const auto of = [&](nn::LanguageModel& model, const parallel::ParallelPlan& plan) {
    return log_probabilities(model, plan, rows);
  };
  const Tensor reference = of_reference(of);
  const Tensor ratios = ops::sub(of_model(of), reference);
  const Tensor rewards =
      ops::unflatten(ops::mul_scalar(ratios, config_.beta), 0, {ratios.size(0) / 2, 2});
  const Tensor chosen = ops::select(rewards, 1, 0);
  const Tensor rejected = ops::select(rewards, 1, 1);
  const Tensor margins = ops::sub(chosen, rejected);
  const double smoothing = config_.label_smoothing;
  Tensor losses = ops::mul_scalar(ops::log_sigmoid(margins), smoothing - 1);
  if (smoothing > 0) {
    losses = ops::add(losses, ops::log_sigmoid(ops::mul_scalar(margins, -1.0)), -smoothing);
  }
  const Tensor sum = ops::sum(losses);
  if (watch_) {
    const NoGrad constant;
    watch_({.losses = detached(losses), .sum = detached(sum)});
  }
  return {sum, measured_sums(chosen, rejected)};
}

double Preferences::weight(std::int64_t rows, std::int64_t /*tokens*/) const {
  return static_cast<double>(rows);
}

Measures Preferences::measures(std::span<const double> measured) const {
  return {{"rewards/chosen", measured[0]},
          {"rewards/rejected", measured[1]},
          {"rewards/margins", measured[0] - measured[1]},
          {"rewards/accuracies", measured[2]}};
}

std::string NextToken::text() const { return ""; }

std::string Preferences::text() const {
  return fmt::format("preferences (DPO), beta {}{}; compared with {}", config_.beta,
                     config_.label_smoothing > 0
                         ? fmt::format(", label smoothing {}", config_.label_smoothing)
                         : std::string(),
                     reference_ != nullptr ? "a frozen copy of the first weights"
                                           : "the model without its low-rank updates");
}

bool needs_copy(const RunSpec& config, nn::LanguageModel& model) {
  if (config.train.objective != ObjectiveKind::dpo) {
    return false;
  }
  const bool has_updates = !hub::updates_of(model).empty();
  switch (config.dpo.reference) {
    case ReferenceKind::automatic:
      return !has_updates || !config.model.adapter.empty();
    case ReferenceKind::copy:
      return true;
    case ReferenceKind::adapter_off:
      break;
  }
  if (!has_updates) {
    fail_input({.where = config.place("dpo.reference"),
                .wrong = "the model has no low-rank updates that could be switched off",
                .expected = "an entry of [[parallel]] with the style LoRA or QLoRA",
                .advice = "set dpo.reference=copy"});
  }
  return false;
}

std::unique_ptr<Objective> make_objective(const RunSpec& config, nn::LanguageModel& model,
                                          const parallel::ParallelPlan& plan,
                                          FrozenCopy* reference) {
  if (config.train.objective == ObjectiveKind::dpo) {
    return std::make_unique<Preferences>(model, plan, config.dpo, reference);
  }
  return std::make_unique<NextToken>(model, plan);
}

}  // namespace tessera::runs
