// FSDP: every parameter is a shard on dim 0 along the axis; whole values exist only while a module
// uses them. Options: see Settings.
//
// Order: forward of a module gathers its groups (and issues the gather of the next module's) ->
// computes -> frees; its backward gathers again (and issues the one before) -> when all gradients
// of a group have arrived, their reduction into the shards' gradients is issued and the whole
// values are freed; it is finished before the next reduction, or at the end of backward.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "group.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

struct Settings {
  /// Whether forward frees whole values; backward then gathers them again.
  bool reshard_after_forward = true;
  /// How many modules ahead values are gathered.
  std::int64_t prefetch = 1;
  /// Whether micro-batches keep whole gradients until the last one, instead of reducing each.
  bool keeps_whole_gradients = false;
  /// Parameters of fewer elements are replicated.
  std::int64_t replicate_below = 0;

  static std::int64_t at_least_0(Options& options, const std::string& name,
                                 std::int64_t otherwise) {
    const std::int64_t value = options.integer(name, otherwise);
    if (value < 0) {
      options.refuse(fmt::format("option '{}' must be 0 or more (got {})", name, value));
    }
    return value;
  }
  explicit Settings(Options& options)
      : reshard_after_forward(options.flag("reshard_after_forward", true)),
        prefetch(at_least_0(options, "prefetch", 1)),
        keeps_whole_gradients(options.choice("accumulate", "shards", {"shards", "whole"}) ==
                              "whole"),
        replicate_below(at_least_0(options, "replicate_below", 0)) {}
};

/// The groups of one module, one for each data type: a collective has one type.
struct Unit {
  nn::Module* module = nullptr;
  std::vector<std::unique_ptr<fsdp::Group>> groups = {};
};

/// What the hooks share. Modules and graphs keep it alive, whatever becomes of the plan.
class Sharding : public ShardedParameters, public std::enable_shared_from_this<Sharding> {
 public:
  explicit Sharding(const Settings& settings) : settings_(settings) {}

  void add(nn::Module& module, std::vector<std::unique_ptr<fsdp::Group>> groups) {
    const std::vector<nn::Module*> inside = nn::all_modules(module);
    const std::size_t index = units_.size();
    const bool outermost =
        (index > 0 || module.name().empty()) &&
        std::all_of(units_.begin(), units_.end(), [&](const Unit& unit) {
          return std::find(inside.begin(), inside.end(), unit.module) != inside.end();
        });
    outermost_ = outermost ? std::optional(index) : std::nullopt;
    units_.push_back({&module, std::move(groups)});
    const auto self = shared_from_this();
    module.add_outer_pre_hook(
        [self, index](nn::Module&, Tensors&) { self->before_forward(index); });
    module.add_hook([self, index](nn::Module&, const Tensors&, Tensors& outputs) {
      self->after_forward(index, outputs);
    });
  }

  std::int64_t replicate_below() const { return settings_.replicate_below; }

  template <class F>
  void for_each_group(F f) {
    for (Unit& unit : units_) {
      for (const auto& group : unit.groups) {
        f(*group);
      }
    }
  }

  void unshard(std::string_view module) override {
    for (const auto& group : unit_of(module).groups) {
      group->unshard(false);
    }
  }
  void reshard(std::string_view module) override {
    for (const auto& group : unit_of(module).groups) {
      group->reshard();
    }
    settle();
  }
  void set_reshard_after_forward(bool reshard) override {
    settings_.reshard_after_forward = reshard;
  }
  void set_gradient_sync(bool sync) override { gradient_sync_ = sync; }

  /// Parameters may be written from here on.
  void settle() {
    fsdp::Group::settle(reducing_);
    std::vector<const fsdp::Group*> groups;
    for_each_group([&](const fsdp::Group& group) { groups.push_back(&group); });
    fsdp::Group::wait_readers(groups);
  }

 private:
  /// Lives as long as the callback at the end of a backward. Dropped without having run, the
  /// backward threw.
  struct Backward {
    std::shared_ptr<Sharding> sharding;
    bool finished = false;
    explicit Backward(std::shared_ptr<Sharding> owner) : sharding(std::move(owner)) {}
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;
    ~Backward() {
      if (!finished) {
        sharding->for_each_group([](fsdp::Group& group) { group.abandon_backward(); });
        sharding->reducing_ = {};
      }
    }
  };

  const Unit& unit_of(std::string_view module) const {
    std::vector<std::string> known;
    for (const Unit& unit : units_) {
      if (unit.module->name() == module) {
        return unit;
      }
      known.push_back(fmt::format("'{}'", unit.module->name()));
    }
    fail({.thing = "FSDP",
          .wrong = fmt::format("it gathers no parameters of module '{}' together", module),
          .expected = fmt::format("one of {}", join_words(known)),
          .advice = "let a pattern of its groups match the module"});
  }

  /// Issues the gathers of the units that follow in this order.
  void prefetch(std::size_t unit, const std::vector<std::size_t>& order) {
    for (std::int64_t ahead = 0; ahead < settings_.prefetch && order[unit] != unit; ++ahead) {
      unit = order[unit];
      for (const auto& group : units_[unit].groups) {
        group->start_unshard();
      }
    }
  }

  void before_forward(std::size_t index) {
    const bool again = in_backward();  // computed again by an activation checkpoint
    if (!again && (!running_ || running_ == index)) {
      running_ = index;
      keep_ = grad_enabled();
      for_each_group([](fsdp::Group& group) { group.drop_prefetch(); });
      if (!order_complete_) {
        forward_order_.clear();
      }
    }
    for (const auto& group : units_[index].groups) {
      group->unshard(again);
    }
    if (again || running_ != outermost_) {
      return;
    }
    if (!order_complete_) {
      forward_order_.push_back(index);
    } else {
      prefetch(index, next_forward_);
    }
  }

  void after_forward(std::size_t index, Tensors& outputs) {
    if (!in_backward()) {
      // Backward begins with the outermost module: freeing its values would only gather them again.
      if (!keep_ || (settings_.reshard_after_forward && index != outermost_)) {
        for (const auto& group : units_[index].groups) {
          group->reshard();
        }
      }
      if (running_ == index) {
        end_forward(index);
      }
    }
    for (const Tensor& output : outputs) {
      if (output && output.requires_grad()) {
        add_gradient_hook(output, [self = shared_from_this(), index](const Tensor&) {
          self->before_backward(index);
          return Tensor();
        });
      }
    }
  }

  void end_forward(std::size_t index) {
    running_.reset();
    if (index == outermost_) {
      complete_order();
    }
    for_each_group([](fsdp::Group& group) { group.drop_prefetch(); });
    settle();
  }

  void before_backward(std::size_t index) {
    if (backward_.expired()) {
      const auto backward = std::make_shared<Backward>(shared_from_this());
      backward_ = backward;
      queue_final_callback([backward] {
        backward->sharding->finish_backward();
        backward->finished = true;
      });
    }
    reduce_complete_groups(index);
    for (const auto& group : units_[index].groups) {
      group->unshard(true);
    }
    if (order_complete_) {
      prefetch(index, previous_forward_);
    }
  }

  /// Groups whose gradients have all arrived are done with their whole values.
  void reduce_complete_groups(std::size_t except) {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      for (const auto& group : units_[i].groups) {
        if (i != except && group->gradients_complete()) {
          end_backward(*group);
        }
      }
    }
  }

  void end_backward(fsdp::Group& group) {
    const bool whole = settings_.keeps_whole_gradients && !gradient_sync_enabled();
    group.end_backward(gradient_sync_ && !whole, reducing_);
  }

  void finish_backward() {
    for_each_group([this](fsdp::Group& group) { end_backward(group); });
    settle();
  }

  void complete_order() {
    if (order_complete_) {
      return;
    }
    next_forward_.resize(units_.size());
    previous_forward_.resize(units_.size());
    for (std::size_t i = 0; i < units_.size(); ++i) {
      next_forward_[i] = previous_forward_[i] = i;
    }
    for (std::size_t i = 0; i + 1 < forward_order_.size(); ++i) {
      next_forward_[forward_order_[i]] = forward_order_[i + 1];
      previous_forward_[forward_order_[i + 1]] = forward_order_[i];
    }
    order_complete_ = true;
  }

  Settings settings_;
  bool gradient_sync_ = true;
  std::vector<Unit> units_;
  /// The unit around all others, if there is one.
  std::optional<std::size_t> outermost_;
  /// The unit whose forward the program called, while it runs.
  std::optional<std::size_t> running_;
  /// Whether a backward will follow that forward. (The first call of an activation checkpoint
  /// inside of it records nothing.)
  bool keep_ = false;
  std::vector<std::size_t> forward_order_;
  std::vector<std::size_t> next_forward_;
  std::vector<std::size_t> previous_forward_;
  fsdp::Reduction reducing_;
  bool order_complete_ = false;
  std::weak_ptr<Backward> backward_;
};

class Fsdp final : public ParallelStyle {
 public:
  explicit Fsdp(Options& options) : sharding_(std::make_shared<Sharding>(Settings(options))) {}

  StyleFacts facts() const override {
    return {.splits_batch = true,
            .places_parameters = true,
            .wraps_forward = true,
            .keeps_parameters = true,
            .most_axes = 2};
  }

  void apply(const StyleTarget& target) override {
    const std::string name = target.module.name().empty() ? "." : target.module.name();
    std::map<DType, std::unique_ptr<fsdp::Group>> by_type;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      const auto& placed_by = parameter->placed_by[static_cast<std::size_t>(target.axis)];
      if (placed_by.style == target.style) {
        continue;  // an inner module's group has it
      }
      if (target.axes.size() > 1) {
        target.place(*parameter, target.axes.front(), Replicate());
      }
      if (parameter->value.numel() < sharding_->replicate_below()) {
        target.place(*parameter, Replicate());
        continue;
      }
      target.place(*parameter, Shard(0));
      auto& group = by_type[parameter->value.dtype()];
      if (!group) {
        group = std::make_unique<fsdp::Group>(name, target.mesh, target.axis);
      }
      group->add(parameter);
    }
    std::vector<std::unique_ptr<fsdp::Group>> groups;
    for (auto& [dtype, group] : by_type) {
      groups.push_back(std::move(group));
    }
    if (!groups.empty()) {
      sharding_->add(target.module, std::move(groups));
    }
  }

  ShardedParameters* sharded_parameters() override { return sharding_.get(); }

  void materialize(Device device) override {
    sharding_->for_each_group([device](fsdp::Group& group) { group.materialize(device); });
  }

  void before_optimizer() override {
    sharding_->for_each_group([](fsdp::Group& group) { group.reshard(); });
    sharding_->settle();
  }

 private:
  std::shared_ptr<Sharding> sharding_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("FSDP",
                               [](Options& options) { return std::make_unique<Fsdp>(options); });
}
