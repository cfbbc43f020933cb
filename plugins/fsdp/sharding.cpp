#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "sharding.hpp"

namespace fsdp {

using namespace tessera;
using parallel::gradient_sync_enabled;

/// Lives as long as the callback at the end of a backward. Dropped without having run, the backward
/// threw.
struct Sharding::Backward {
  std::shared_ptr<Sharding> sharding;
  bool finished = false;
  explicit Backward(std::shared_ptr<Sharding> owner) : sharding(std::move(owner)) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() {
    if (!finished) {
      sharding->for_each_group([](Group& group) { group.abandon_backward(); });
      sharding->reducing_ = {};
    }
  }
};

namespace {

/// That are known: more than a rank has stages.
constexpr std::size_t most_passes = 16;

}  // namespace

std::shared_ptr<Sharding> Sharding::make(Settings settings) {
  std::shared_ptr<Sharding> made(new Sharding(std::move(settings)));
  made->settings_.gradient_arrived = [weak = std::weak_ptr<Sharding>(made)] {
    if (const auto self = weak.lock()) {
      self->gradient_arrived();
    }
  };
  return made;
}

std::size_t Sharding::add_unit() {
  units_.emplace_back();
  return units_.size() - 1;
}

void Sharding::add(std::size_t index, nn::Module& module) {
  units_[index].modules.push_back(&module);
  units_[index].names.push_back(module.name());
  const std::vector<nn::Module*> inside = nn::all_modules(module);
  const auto is_inside = [&](const nn::Module* one) {
    return std::find(inside.begin(), inside.end(), one) != inside.end();
  };
  const bool outermost = (units_.size() > 1 || module.name().empty()) &&
                         units_[index].modules.size() == 1 &&
                         std::all_of(units_.begin(), units_.end(), [&](const Unit& unit) {
                           return std::all_of(unit.modules.begin(), unit.modules.end(), is_inside);
                         });
  outermost_ = outermost ? std::optional(index) : std::nullopt;
  const auto self = shared_from_this();
  module.add_outer_pre_hook([self, index](nn::Module&, Tensors&) { self->before_forward(index); });
  nn::add_conversion(module, [self, index](nn::Module&, const Tensors&, Tensors& outputs) {
    self->cast_outputs(index, outputs);
  });
  module.add_hook([self, index](nn::Module&, const Tensors&, Tensors& outputs) {
    self->after_forward(index, outputs);
  });
}

void Sharding::note_change() {
  for (const Unit& unit : units_) {
    for (nn::Module* const module : unit.modules) {
      module->note_change();
    }
  }
}

std::size_t Sharding::unit_of(std::string_view module) const {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (const std::string& own : units_[i].names) {
      if (own == module) {
        return i;
      }
      known.push_back(fmt::format("'{}'", own));
    }
  }
  fail({.thing = "FSDP",
        .wrong = fmt::format("it gathers no parameters of module '{}' together", module),
        .expected = fmt::format("one of {}", join_words(known)),
        .advice = "let a pattern of its groups match the module"});
}

std::vector<std::size_t> Sharding::units_of(const std::vector<std::string>& modules) const {
  std::vector<std::size_t> units;
  for (const std::string& module : modules) {
    units.push_back(unit_of(module));
  }
  return units;
}

void Sharding::unshard(std::string_view module) {
  for (const auto& group : units_[unit_of(module)].groups) {
    group->unshard(false);
  }
}

void Sharding::start_unshard(std::string_view module) { start(units_[unit_of(module)]); }

void Sharding::reshard(std::string_view module) {
  for (const auto& group : units_[unit_of(module)].groups) {
    group->reshard();
  }
  settle();
}

void Sharding::set_forward_prefetch(std::string_view module, const std::vector<std::string>& next) {
  units_[unit_of(module)].forward_prefetch = units_of(next);
}

void Sharding::set_backward_prefetch(std::string_view module,
                                     const std::vector<std::string>& next) {
  units_[unit_of(module)].backward_prefetch = units_of(next);
}

void Sharding::settle() {
  Group::settle(reducing_);
  std::vector<const Group*> groups;
  for_each_group([&](const Group& group) { groups.push_back(&group); });
  Group::wait_readers(groups);
  settings_.copies->clear();
}

void Sharding::start(const Unit& unit) {
  for (const auto& group : unit.groups) {
    group->start_unshard();
  }
}

void Sharding::fetch(const Unit& unit) {
  for (const auto& group : unit.groups) {
    group->fetch();
  }
}

void Sharding::prefetch(std::size_t index, const std::optional<std::vector<std::size_t>>& given,
                        const std::vector<std::size_t>& order, std::size_t place) {
  if (given) {
    for (const std::size_t next : *given) {
      start(units_[next]);
    }
    return;
  }
  if (place >= order.size() || order[place] != index) {
    return;  // not the order of the last pass
  }
  const auto ahead = static_cast<std::size_t>(settings_.options.prefetch);
  for (std::size_t i = place + 1; i < order.size() && i <= place + ahead; ++i) {
    start(units_[order[i]]);
  }
  if (place + ahead + 1 < order.size()) {
    fetch(units_[order[place + ahead + 1]]);  // it is gathered after the next module
  }
}

void Sharding::before_forward(std::size_t index) {
  const bool again = in_backward();  // computed again by an activation checkpoint
  if (!again && (!running_ || running_ == index)) {
    running_ = index;
    keep_ = grad_enabled();
    for_each_group([](Group& group) { group.drop_prefetch(); });
    now_ = {};
    for (Unit& unit : units_) {
      unit.ran = 0;
    }
  }
  for (const auto& group : units_[index].groups) {
    group->unshard(again);
  }
  if (!again && running_ == outermost_) {
    prefetch(index, units_[index].forward_prefetch, last_.begun, now_.begun.size());
    now_.begun.push_back(index);
  }
}

void Sharding::cast_outputs(std::size_t index, Tensors& outputs) const {
  if (running_ == index && settings_.options.precision.outputs) {
    for (Tensor& output : outputs) {
      if (output && is_floating(output.dtype())) {
        output = ops::cast(output, *settings_.options.precision.outputs);
      }
    }
  }
}

void Sharding::after_forward(std::size_t index, const Tensors& outputs) {
  if (!in_backward()) {
    Unit& unit = units_[index];
    if (++unit.ran >= unit.modules.size()) {
      unit.ran = 0;
      if (!keep_ || (settings_.options.reshard_after_forward && !begins_backward(index))) {
        for (const auto& group : unit.groups) {
          group->reshard(keep_);
        }
      }
    }
    now_.ended.push_back(index);
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

bool Sharding::begins_backward(std::size_t index) const {
  return index == outermost_ ||
         (running_ == outermost_ && now_.ended.size() + 2 == last_.ended.size() &&
          last_.ended[1] == index);
}

void Sharding::end_forward(std::size_t index) {
  running_.reset();
  if (index == outermost_) {
    for (Unit& unit : units_) {  // not all of the unit's modules were called
      if (std::exchange(unit.ran, 0) != 0 && settings_.options.reshard_after_forward &&
          &unit != &units_[index]) {
        for (const auto& group : unit.groups) {
          group->reshard(keep_);
        }
      }
    }
    std::reverse(now_.ended.begin(), now_.ended.end());
    last_ = std::move(now_);
    std::erase_if(passes_, [&](const Order& before) { return before.ended == last_.ended; });
    passes_.push_back(last_);
    if (passes_.size() > most_passes) {
      passes_.erase(passes_.begin());
    }
  }
  for_each_group([](Group& group) { group.drop_prefetch(); });
  settle();
}

void Sharding::begin_backward() {
  const auto backward = std::make_shared<Backward>(shared_from_this());
  backward_ = backward;
  backward_place_ = 0;
  for (Unit& unit : units_) {
    unit.began = false;
  }
  for_each_group([](Group& group) { group.begin_backward(); });
  queue_final_callback([backward] {
    backward->sharding->finish_backward();
    backward->finished = true;
  });
}

void Sharding::before_backward(std::size_t index) {
  if (backward_.expired()) {
    begin_backward();
  }
  units_[index].began = true;
  recall(index);
  const auto found = std::find(rest_of_backward(), last_.ended.cend(), index);
  if (found != last_.ended.cend()) {
    backward_place_ = static_cast<std::size_t>(found - last_.ended.begin());
  }
  reduce_complete_groups(index);
  for (const auto& group : units_[index].groups) {
    group->unshard(true);
  }
  prefetch(index, units_[index].backward_prefetch, last_.ended, backward_place_);
}

void Sharding::recall(std::size_t index) {
  const auto has = [index](const Order& order) {
    return std::ranges::find(order.ended, index) != order.ended.end();
  };
  if (has(last_)) {
    return;
  }
  const auto found = std::find_if(passes_.rbegin(), passes_.rend(), has);
  if (found != passes_.rend()) {
    last_ = *found;
    backward_place_ = 0;
  }
}

bool Sharding::is_around(const Unit& outer, const Unit& inner) const {
  return std::ranges::any_of(outer.names, [&](const std::string& around) {
    return std::ranges::any_of(inner.names, [&](const std::string& name) {
      return around.empty() || name.starts_with(around + ".");
    });
  });
}

std::vector<std::size_t>::const_iterator Sharding::rest_of_backward() const {
  return last_.ended.begin() + static_cast<std::ptrdiff_t>(backward_place_);
}

void Sharding::reduce_complete_groups(std::size_t now) {
  // Gradients of which arrival says nothing: some may be missing, or none arrives in this half.
  const bool by_place =
      settings_.options.missing_gradients_are_zero || backward_part() == BackwardPart::to_inputs;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (i == now) {
      continue;
    }
    Unit& unit = units_[i];
    const bool passed = unit.began && !is_around(unit, units_[now]) &&
                        std::find(rest_of_backward(), last_.ended.cend(), i) == last_.ended.cend();
    for (const auto& group : unit.groups) {
      if (by_place ? passed : group->gradients_complete()) {
        end_backward(*group);
      } else if (passed && group->is_frozen() && settings_.options.reshard_after_backward) {
        group->reshard();
      }
    }
    unit.began = unit.began && !passed;
  }
}

void Sharding::end_backward(Group& group) {
  const bool whole = settings_.options.keeps_whole_gradients && !gradient_sync_enabled();
  if (backward_part() != BackwardPart::to_inputs) {
    group.end_gradients(gradient_sync_ && !whole, reducing_);
  }
  if (backward_part() != BackwardPart::to_leaves) {
    group.end_use();
  }
}

void Sharding::gradient_arrived() {
  if (backward_part() != BackwardPart::to_leaves || settings_.options.missing_gradients_are_zero) {
    return;
  }
  for_each_group([this](Group& group) {
    if (group.gradients_complete()) {
      end_backward(group);
    }
  });
}

void Sharding::finish_backward() {
  for_each_group([this](Group& group) { end_backward(group); });
  settle();
  if (backward_part() == BackwardPart::to_inputs) {
    queue_for_second_half([self = shared_from_this()] { self->begin_backward(); });
  }
}

}  // namespace fsdp
