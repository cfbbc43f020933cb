export module tessera.runs:objective;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;
import tessera.train;
import :frozen_copy;
import :spec;
import :metrics;
import :task;

// What a run minimises, and what is measured besides.

export namespace tessera::runs {

/// What a run minimises, on one rank.
class Objective {
 public:
  virtual ~Objective() = default;
  /// Sums over the rows of a micro-batch, whose local tensors these are: those of a Batch, [rows,
  /// seq_len] (i64), inputs and targets first.
  virtual StepSums sums(const Tensors& rows) = 0;
  /// Of a stage that does not end the model: its hidden states. Error: an objective that is not
  /// computed by stages.
  virtual Tensor states(const Tensors& rows);
  /// What the sums are divided by, of `rows` of the batch in which `tokens` are trained.
  virtual double weight(std::int64_t rows, std::int64_t tokens) const = 0;
  /// Values of StepResult::measured, for reports.
  virtual Measures measures(std::span<const double> measured) const = 0;
  /// For the table before the first step; empty: nothing that is not in it anyway.
  virtual std::string text() const = 0;
  /// See RankTask::watch_losses.
  virtual void watch_losses(LossWatch watch) = 0;
};

/// The mean of the trained tokens' losses.
class NextToken final : public Objective {
 public:
  /// Model and plan must live as long.
  NextToken(nn::LanguageModel& model, const parallel::ParallelPlan& plan)
      : model_(model), plan_(plan) {}
  StepSums sums(const Tensors& rows) override;
  Tensor states(const Tensors& rows) override;
  double weight(std::int64_t rows, std::int64_t tokens) const override;
  Measures measures(std::span<const double> measured) const override;
  std::string text() const override;
  void watch_losses(LossWatch watch) override;

 private:
  nn::LanguageModel& model_;
  const parallel::ParallelPlan& plan_;
  nn::HookHandle hook_;  // of the loss, while it is watched
  Tensor losses_;        // of the call that is watched
};

/// Direct preference optimisation (Rafailov et al. 2023), as trl computes it: with the reward of an
/// answer, beta (log p(answer) - log p_reference(answer)), the mean over pairs of -log
/// sigmoid(chosen reward - rejected reward). With label smoothing s, this counts 1 - s, and the
/// same of the exchanged rewards s. An answer's log-probability is the sum over its tokens.
class Preferences final : public Objective {
 public:
  /// `reference`: a frozen copy; null: the model with its updates switched off. All must live as
  /// long.
  Preferences(nn::LanguageModel& model, const parallel::ParallelPlan& plan, const DpoConfig& config,
              FrozenCopy* reference)
      : model_(model), plan_(plan), config_(config), reference_(reference) {}
  StepSums sums(const Tensors& rows) override;
  /// Those of the model and of the reference, which need each other only at the end: [B, T, 2 dim].
  Tensor states(const Tensors& rows) override;
  double weight(std::int64_t rows, std::int64_t tokens) const override;
  /// The means of both rewards, of their difference, and of how often the chosen one is greater.
  Measures measures(std::span<const double> measured) const override;
  std::string text() const override;
  void watch_losses(LossWatch watch) override { watch_ = std::move(watch); }

 private:
  using OfModel = std::function<Tensor(nn::LanguageModel&, const parallel::ParallelPlan&)>;
  /// f of the model, and of the reference, without gradients. Within a stage, each begins with its
  /// half of what enters.
  Tensor of_model(const OfModel& f);
  Tensor of_reference(const OfModel& f);

  nn::LanguageModel& model_;
  const parallel::ParallelPlan& plan_;
  DpoConfig config_;
  FrozenCopy* reference_;
  LossWatch watch_;
};

/// Whether the objective reads a frozen copy of this model. Error (input):
/// dpo.reference=adapter_off for a model that has no updates to switch off.
bool needs_copy(const RunSpec& config, nn::LanguageModel& model);

/// That of the config; `reference`: null where it needs no copy.
std::unique_ptr<Objective> make_objective(const RunSpec& config, nn::LanguageModel& model,
                                          const parallel::ParallelPlan& plan,
                                          FrozenCopy* reference);

}  // namespace tessera::runs
