module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
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

}  // namespace

std::unique_ptr<MicroBatchOrder> one_after_the_other(const parallel::ParallelPlan& plan) {
  return std::make_unique<OneAfterTheOther>(plan);
}

}  // namespace tessera
