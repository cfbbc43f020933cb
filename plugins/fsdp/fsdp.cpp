// FSDP: every parameter is a shard on dim 0 along the axis; whole values exist only while a module
// uses them. Options: reshard_after_forward = true (false keeps the whole values until backward has
// used them).
//
// Order: forward of a module gathers its group (and asks for the next one) -> computes -> frees;
// its backward gathers again (and asks for the one before) -> when all gradients of the group are
// there, they are reduced into the shards' gradients and the whole values are freed.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "group.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

class Fsdp final : public ParallelStyle {
 public:
  explicit Fsdp(Options& options)
      : reshard_after_forward_(options.flag("reshard_after_forward", true)) {}

  StyleFacts facts() const override {
    return {.splits_batch = true,
            .after = {"ColwiseParallel", "RowwiseParallel", "SequenceParallel", "NoParallel",
                      "PrepareModuleInput", "PrepareModuleOutput", "PrepareModuleInputOutput"},
            .excludes = {"Replicate"}};
  }

  void apply(const StyleTarget& target) override {
    auto group = std::make_unique<fsdp::Group>(
        target.module.name().empty() ? "." : target.module.name(), target.mesh, target.axis);
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      const auto& placed_by = parameter->placed_by[static_cast<std::size_t>(target.axis)];
      if (placed_by.style == target.style) {
        continue;  // an inner module's group has it
      }
      target.place(*parameter, Shard(0));
      group->add(parameter);
    }
    if (group->empty()) {
      return;
    }
    const std::size_t index = groups_.size();
    const bool outermost = target.module.name().empty();
    groups_.push_back(std::move(group));
    target.module.add_outer_pre_hook(
        [this, index](nn::Module&, Tensors&) { before_forward(index); });
    target.module.add_hook([this, index, outermost](nn::Module&, const Tensors&, Tensors& outputs) {
      after_forward(index, outermost, outputs);
    });
  }

  void materialize() override {
    for (const auto& group : groups_) {
      group->materialize();
    }
  }

  void before_optimizer() override {
    for (const auto& group : groups_) {
      group->wait_sources_free();
      group->reshard();
    }
    reducing_.clear();
  }

 private:
  void before_forward(std::size_t index) {
    groups_[index]->unshard();
    if (in_backward()) {
      return;  // computed again for backward: only make sure that the parameters are there
    }
    if (order_complete_) {
      const std::size_t next = next_forward_[index];
      if (next != index) {
        groups_[next]->start_unshard();
      }
    } else {
      forward_order_.push_back(index);
    }
  }

  void after_forward(std::size_t index, bool outermost, Tensors& outputs) {
    if (!in_backward()) {
      if (outermost) {
        complete_order();
      }
      // Backward begins with the outermost group: freeing it would only gather it again.
      if (!grad_enabled() || (reshard_after_forward_ && !outermost)) {
        groups_[index]->reshard();
      }
    }
    for (const Tensor& output : outputs) {
      if (output && output.requires_grad()) {
        add_gradient_hook(output, [this, index](const Tensor&) {
          before_backward(index);
          return Tensor();
        });
      }
    }
  }

  void before_backward(std::size_t index) {
    if (!backward_running_) {
      backward_running_ = true;
      queue_final_callback([this] { finish_backward(); });
    }
    reduce_complete_groups(index);
    groups_[index]->unshard();
    if (order_complete_ && previous_forward_[index] != index) {
      groups_[previous_forward_[index]]->start_unshard();
    }
  }

  /// Groups whose gradients have all arrived are done with their whole values.
  void reduce_complete_groups(std::size_t except) {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (i != except && groups_[i]->gradients_complete()) {
        after_backward(i);
      }
    }
  }

  void after_backward(std::size_t index) {
    groups_[index]->end_backward(gradient_sync_enabled(), reducing_);
  }

  void finish_backward() {
    backward_running_ = false;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      after_backward(i);
    }
  }

  void complete_order() {
    if (order_complete_) {
      return;
    }
    next_forward_.resize(groups_.size());
    previous_forward_.resize(groups_.size());
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      next_forward_[i] = previous_forward_[i] = i;
    }
    for (std::size_t i = 0; i + 1 < forward_order_.size(); ++i) {
      next_forward_[forward_order_[i]] = forward_order_[i + 1];
      previous_forward_[forward_order_[i + 1]] = forward_order_[i];
    }
    order_complete_ = true;
  }

  bool reshard_after_forward_;
  std::vector<std::unique_ptr<fsdp::Group>> groups_;
  std::vector<std::size_t> forward_order_;
  std::vector<std::size_t> next_forward_;
  std::vector<std::size_t> previous_forward_;
  /// What peers may still read of the last reduction.
  std::vector<Tensor> reducing_;
  bool order_complete_ = false;
  bool backward_running_ = false;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("FSDP",
                               [](Options& options) { return std::make_unique<Fsdp>(options); });
}
