module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :micro_batches;

namespace tessera {

MicroBatchOrder::~MicroBatchOrder() = default;

void add_sums(StepSums& all, const StepSums& part) {
  const NoGrad no_grad;
  all.loss = all.loss ? ops::add(all.loss, part.loss) : part.loss;
  all.measured.resize(part.measured.size());
  for (std::size_t i = 0; i < part.measured.size(); ++i) {
    Tensor& sum = all.measured[i];
    sum = sum ? ops::add(sum, part.measured[i]) : part.measured[i];
  }
}

StepSums summed_on_mesh(const StepSums& sums, const parallel::ParallelPlan& plan) {
  const NoGrad no_grad;
  const auto over_all = [&](const Tensor& sum) {
    return redistribute(sum, Layout::replicated(plan.mesh())).local();
  };
  StepSums all{over_all(sums.loss)};
  for (const Tensor& sum : sums.measured) {
    all.measured.push_back(over_all(sum));
  }
  return all;
}

namespace {

class OneAfterTheOther final : public MicroBatchOrder {
 public:
  explicit OneAfterTheOther(const parallel::ParallelPlan& plan) : plan_(plan) {}

  StepSums gradients(const MicroBatches& all) override {
    StepSums sums;
    for (std::int64_t number = 0; number < all.count; ++number) {
      const parallel::GradientSyncScope sync(number + 1 == all.count);
      std::optional<MicroBatchScope> scope;
      if (const std::optional<MicroBatch> place = all.place(number)) {
        scope.emplace(all.start, *place);
      }
      const MicroLoss loss = all.loss(all.rows(number));
      backward(loss.root);
      add_sums(sums, loss.sums);
    }
    return sums;
  }

  StepSums evaluation(const MicroBatches& all) override {
    StepSums sums;
    for (std::int64_t number = 0; number < all.count; ++number) {
      add_sums(sums, all.loss(all.rows(number)).sums);
    }
    return sums;
  }

  StepSums whole(const StepSums& sums) override { return summed_on_mesh(sums, plan_); }
  void finish(std::span<const nn::ParameterPointer>) override {}
  Tensor norm_power(std::span<const nn::ParameterPointer> parameters, double p) override {
    return optim::gradient_norm_power(parameters, p);
  }
  void set_planned(std::shared_ptr<PlannedStates>) override {}
  bool is_planned() const override { return true; }

 private:
  const parallel::ParallelPlan& plan_;
};

/// The gradients of micro-batches, added along a binary tree: each waits until the subtree beside
/// its own is complete.
class GradientTree {
 public:
  explicit GradientTree(std::span<const nn::ParameterPointer> parameters)
      : parameters_(parameters) {}

  /// Takes the parameters' gradients, which are those of the next micro-batch.
  void add() {
    Tensors next;
    for (const nn::ParameterPointer& parameter : parameters_) {
      next.push_back(std::exchange(parameter->value.grad(), Tensor()));
    }
    waiting_.push_back(std::move(next));
    for (std::int64_t subtrees = ++added_; subtrees % 2 == 0; subtrees /= 2) {
      join();
    }
  }

  /// Gives the parameters the sums.
  void finish() {
    while (waiting_.size() > 1) {
      join();
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i]->value.grad() = std::move(waiting_.front()[i]);
    }
  }

 private:
  void join() {
    const NoGrad no_grad;
    const MemoryScope scope(MemoryCategory::gradient);
    Tensors later = std::move(waiting_.back());
    waiting_.pop_back();
    Tensors& sums = waiting_.back();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const Tensor term = std::exchange(later[i], Tensor());  // its memory ends with it
      if (term) {
        sums[i] = sums[i] ? ops::add(sums[i], term) : term;
      }
    }
  }

  std::span<const nn::ParameterPointer> parameters_;
  std::vector<Tensors> waiting_;  // sums of complete subtrees, the largest first
  std::int64_t added_ = 0;
};

class InATree final : public MicroBatchOrder {
 public:
  InATree(const parallel::ParallelPlan& plan, std::vector<nn::ParameterPointer> parameters,
          std::function<void(std::span<const nn::ParameterPointer>)> finish)
      : plan_(plan), parameters_(std::move(parameters)), finish_(std::move(finish)) {}

  StepSums gradients(const MicroBatches& all) override {
    StepSums sums;
    GradientTree tree(parameters_);
    for (std::int64_t number = 0; number < all.count; ++number) {
      // Sums over ranks are nearer to the leaves than those over micro-batches, so that styles may
      // keep shards of the sums; all of them are made now.
      const parallel::GradientSyncScope sync(true);
      const std::optional<MicroBatch> place = all.place(number);
      require(place.has_value(), "virtual shards: the rows of a step are not in equal parts");
      const MicroBatchScope scope(all.start, *place);
      const MicroLoss loss = all.loss(all.rows(number));
      backward(loss.root);
      add_sums(sums, exact(loss.sums));
      finish_(parameters_);
      tree.add();
    }
    tree.finish();
    return sums;
  }

  StepSums evaluation(const MicroBatches& all) override {
    StepSums sums;
    for (std::int64_t number = 0; number < all.count; ++number) {
      add_sums(sums, exact(all.loss(all.rows(number)).sums));
    }
    return sums;
  }

  StepSums whole(const StepSums& sums) override {
    StepSums digits = summed_on_mesh(sums, plan_);
    StepSums all{ops::exact_value(digits.loss)};
    for (const Tensor& sum : digits.measured) {
      all.measured.push_back(ops::exact_value(sum));
    }
    return all;
  }

  void finish(std::span<const nn::ParameterPointer>) override {}
  Tensor norm_power(std::span<const nn::ParameterPointer> parameters, double p) override {
    return optim::gradient_norm_power(parameters, p, true);
  }
  void set_planned(std::shared_ptr<PlannedStates>) override {}
  bool is_planned() const override { return true; }

 private:
  static StepSums exact(const StepSums& sums) {
    const NoGrad no_grad;
    const auto digits = [](const Tensor& x) {
      return optim::exact_term(x, ops::ExactTerm::element);
    };
    StepSums all{digits(sums.loss)};
    for (const Tensor& sum : sums.measured) {
      all.measured.push_back(digits(sum));
    }
    return all;
  }

  const parallel::ParallelPlan& plan_;
  std::vector<nn::ParameterPointer> parameters_;
  std::function<void(std::span<const nn::ParameterPointer>)> finish_;
};

}  // namespace

std::unique_ptr<MicroBatchOrder> in_a_tree(
    const parallel::ParallelPlan& plan, std::vector<nn::ParameterPointer> parameters,
    std::function<void(std::span<const nn::ParameterPointer>)> finish) {
  return std::make_unique<InATree>(plan, std::move(parameters), std::move(finish));
}

std::unique_ptr<MicroBatchOrder> one_after_the_other(const parallel::ParallelPlan& plan) {
  return std::make_unique<OneAfterTheOther>(plan);
}

}  // namespace tessera
