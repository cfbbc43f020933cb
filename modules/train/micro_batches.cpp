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
      const StepScope scope([&](StepContext& step) {
        step.sums_gradients = number + 1 == all.count;
        if (const std::optional<MicroBatch> place = all.place(number)) {
          begin_micro_batch(step, all.start, *place);
        }
      });
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
  void set_planned(std::shared_ptr<StageStates>) override {}
  bool is_planned() const override { return true; }

 private:
  const parallel::ParallelPlan& plan_;
};

/// The gradients of micro-batches, added along a binary tree over the virtual shards: each node
/// waits until the one beside it is complete.
class GradientTree {
 public:
  /// `alone`: no gradient is summed over ranks.
  GradientTree(std::span<const nn::ParameterPointer> parameters, bool alone)
      : parameters_(parameters), alone_(alone) {
    for (const nn::ParameterPointer& parameter : parameters_) {
      parallel::take_earlier_sums(*parameter);  // of a step that an error ended
    }
  }

  /// Takes the parameters' gradients, which are those of the next virtual shards. `more`: there are
  /// others after them.
  void add(const LeafRange& shards, bool more) {
    const std::vector<LeafRange> nodes = parallel::tree_nodes(shards);
    std::vector<Tensors> sums(nodes.size());
    for (const nn::ParameterPointer& parameter : parameters_) {
      Tensors earlier = parallel::take_earlier_sums(*parameter);
      Tensor last = std::exchange(parameter->value.grad(), Tensor());
      require(earlier.size() + 1 == nodes.size() || (earlier.empty() && !last),
              "virtual shards: a style has not summed a gradient by the nodes of the tree");
      earlier.resize(nodes.size() - 1);
      earlier.push_back(std::move(last));
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        sums[i].push_back(placed_like(*parameter, std::move(earlier[i])));
      }
    }
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      waiting_.push_back({nodes[i].count + std::exchange(lent_, 0), std::move(sums[i])});
      while (waiting_.size() > 1 && waiting_.back().leaves == waiting_.end()[-2].leaves) {
        join();
      }
    }
    if (alone_ && more && waiting_.back().leaves == 1) {  // the next one is beside it
      lent_ = 1;
      give_back();
    }
  }

  /// Gives the parameters the sums.
  void finish() {
    while (waiting_.size() > 1) {
      join();
    }
    give_back();
  }

 private:
  struct Node {
    std::int64_t leaves = 0;
    Tensors sums = {};  // of the parameters, in order
  };

  static Tensor placed_like(const nn::Parameter& parameter, Tensor gradient) {
    const NoGrad no_grad;
    const Tensor& value = parameter.value;
    const bool placed = !gradient || !value.is_distributed() || gradient.layout() == value.layout();
    return placed ? std::move(gradient) : redistribute(gradient, value.layout());
  }

  void give_back() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i]->value.grad() = std::move(waiting_.back().sums[i]);
    }
    waiting_.pop_back();
  }

  void join() {
    const NoGrad no_grad;
    const MemoryScope scope(MemoryCategory::gradient);
    Node later = std::move(waiting_.back());
    waiting_.pop_back();
    Node& node = waiting_.back();
    node.leaves += later.leaves;
    for (std::size_t i = 0; i < node.sums.size(); ++i) {
      const Tensor term = std::exchange(later.sums[i], Tensor());  // its memory ends with it
      if (term) {
        node.sums[i] = node.sums[i] ? add_gradients(node.sums[i], term) : term;
      }
    }
  }

  std::span<const nn::ParameterPointer> parameters_;
  bool alone_;
  std::int64_t lent_ = 0;      // leaves of the node to whose sums, in the parameters, backward adds
  std::vector<Node> waiting_;  // complete nodes, the largest first
};

class InATree final : public MicroBatchOrder {
 public:
  InATree(const parallel::ParallelPlan& plan, std::vector<nn::ParameterPointer> parameters,
          std::function<void(std::span<const nn::ParameterPointer>)> finish)
      : plan_(plan), parameters_(std::move(parameters)), finish_(std::move(finish)) {}

  StepSums gradients(const MicroBatches& all) override {
    StepSums sums;
    GradientTree tree(parameters_, plan_.mesh().size() == 1);
    for (std::int64_t number = 0; number < all.count; ++number) {
      const LeafRange shards = all.shards(number);
      const std::optional<MicroBatch> place = all.place(number);
      require(place.has_value(), "virtual shards: the rows of a step are not in equal parts");
      const StepScope scope([&](StepContext& step) {
        step.tree_sums = parallel::tree_sums(plan_.mesh(), plan_.batch_axes(), shards);
        // Sums over ranks are nearer to the leaves than those over micro-batches, so that styles
        // may keep shards of the sums; all of them are made now.
        step.sums_gradients = true;
        begin_micro_batch(step, all.start, *place);
      });
      const MicroLoss loss = all.loss(all.rows(number));
      backward(loss.root);
      add_sums(sums, exact(loss.sums, shards));
      finish_(parameters_);
      tree.add(shards, number + 1 < all.count);
    }
    tree.finish();
    return sums;
  }

  StepSums evaluation(const MicroBatches& all) override {
    StepSums sums;
    for (std::int64_t number = 0; number < all.count; ++number) {
      add_sums(sums, exact(all.loss(all.rows(number)).sums, all.shards(number)));
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
  void set_planned(std::shared_ptr<StageStates>) override {}
  bool is_planned() const override { return true; }

 private:
  /// 0 where none of the shards is this rank's.
  StepSums exact(const StepSums& sums, const LeafRange& shards) const {
    const NoGrad no_grad;
    const auto digits = [&](const Tensor& x) {
      const Tensor own = optim::exact_term(x, ops::ExactTerm::element);
      return plan_.batch_part() < shards.count ? own : ops::sub(own, own);
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
