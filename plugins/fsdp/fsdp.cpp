// FSDP: every parameter is a shard along the axis; whole values exist only while a module uses
// them. Options: see parallel::fully_shard_table.
//
// Order: forward of a module gathers its groups (and issues the gather of the next module's) ->
// computes -> frees; its backward gathers again (and issues the one before) -> when all gradients
// of a group have arrived, their reduction into the shards' gradients is issued and the whole
// values are freed; it is finished before the next reduction, or at the end of backward.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <compare>
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
import tessera.options;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "sharding.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

/// A pattern of an option, and whether it has matched anything.
struct Pattern {
  std::string text;
  bool matched = false;

  bool matches(const nn::Parameter& parameter) {
    const bool fits = nn::matches(parameter, text);
    matched = matched || fits;
    return fits;
  }
  bool matches(const nn::Module& module) {
    const bool fits =
        matches_pattern(module.name(), text) || (module.name().empty() && text == ".");
    matched = matched || fits;
    return fits;
  }
};
using Patterns = std::vector<Pattern>;

Patterns patterns(const std::vector<std::string>& texts) {
  Patterns all;
  for (const std::string& text : texts) {
    all.push_back({text});
  }
  return all;
}

template <class Named>
bool any_matches(Patterns& all, const Named& named) {
  bool found = false;
  for (Pattern& pattern : all) {  // each is to know
    found = pattern.matches(named) || found;
  }
  return found;
}

class Fsdp final : public ParallelStyle {
 public:
  explicit Fsdp(Options& options)
      : sharding_(fsdp::Sharding::make({.options = fully_shard_table().read(options)})),
        options_(options),
        ignore_(patterns(settings().options.ignore)) {
    for (const ShardDim& one : settings().options.shard_dims) {
      dims_.push_back({patterns(one.on), one.dim});
    }
    for (const std::vector<std::string>& one : settings().options.together) {
      sets_.push_back({patterns(one)});
    }
  }

  StyleFacts facts() const override {
    return {.splits_batch = true,
            .places_parameters = true,
            .wraps_forward = true,
            .keeps_parameters = true,
            .follows_virtual_shards = settings().options.reduce_dtype == DType::f32,
            .most_axes = settings().options.shard_over_all_axes ? 8 : 2};
  }

  void apply(const StyleTarget& target) override {
    set_axes(target);
    nn::Module& module = target.module;
    std::vector<nn::ParameterPointer> own;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(module)) {
      if (placing_style(*parameter, target.axis) != target.style) {
        own.push_back(parameter);  // else an inner module's group has it
      }
    }
    if (const Precision& precision = settings().options.precision; precision.parameters) {
      set_precision(
          module, {.parameters = precision.parameters, .cast_inputs = precision.cast_inputs}, own);
    }
    std::vector<nn::ParameterPointer> sharded;
    for (const nn::ParameterPointer& parameter : own) {
      if (place(*parameter, target)) {
        parameter->attach<ComputedForm>().style = target.style;
        sharded.push_back(parameter);
      }
    }
    Set* const set = set_of(module);
    // A module whose parameters all are in inner groups is a unit too: what is called around them.
    if (!nn::all_parameters(module).empty() || set != nullptr) {
      const std::size_t unit = unit_of(set);
      for (const nn::ParameterPointer& parameter : sharded) {
        const std::shared_ptr<ShardExtension>& extension =
            parameter->attached<ShardForm>().extension;
        group_of(unit, *parameter, extension.get(), target)
            .add(parameter, dim_of(*parameter), extension);
      }
      sharding_->add(unit, module);
      model_ = &target.model;
      units_[unit].modules.push_back(&module);
      for (const nn::ParameterPointer& parameter : sharded) {
        units_[unit].parameters.push_back(parameter.get());
      }
    }
  }

  std::vector<std::string> unused() override {
    std::vector<std::string> texts;
    const auto check = [&](const char* option, const char* what, const Patterns& all) {
      for (const Pattern& pattern : all) {
        if (!pattern.matched) {
          texts.push_back(
              fmt::format("option '{}': the pattern '{}' matches no {} that the style is applied "
                          "to; correct or remove it",
                          option, pattern.text, what));
        }
      }
    };
    check("ignore", "parameter", ignore_);
    for (const auto& [on, dim] : dims_) {
      check("shard_dims", "parameter", on);
    }
    for (const Set& set : sets_) {
      check("together", "module", set.on);
    }
    return texts;
  }

  void applied() override {
    for (const auto& [number, unit] : units_) {
      for (const nn::Parameter* const parameter : unit.parameters) {
        check_tied(unit, *parameter);
      }
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
  struct Unit {
    std::vector<nn::Module*> modules = {};
    std::vector<const nn::Parameter*> parameters = {};
  };

  /// Whole values exist while one of the unit's modules runs: every module that has the parameter
  /// must be one of them, or inside of one.
  void check_tied(const Unit& unit, const nn::Parameter& parameter) const {
    if (parameter.other_names.empty()) {
      return;  // not tied
    }
    std::vector<std::string> names;    // of the parameter, one for each module that has it
    std::vector<std::string> modules;  // to be gathered together
    bool outside = false;
    for (nn::Module* const user : nn::all_modules(*model_)) {
      const auto slot = std::ranges::find_if(
          user->parameters(), [&](const auto& one) { return one.second.get() == &parameter; });
      if (slot == user->parameters().end()) {
        continue;
      }
      names.push_back(user->name().empty() ? slot->first : user->name() + "." + slot->first);
      const auto around = std::ranges::find_if(unit.modules, [&](nn::Module* module) {
        const std::vector<nn::Module*> inside = nn::all_modules(*module);
        return std::ranges::find(inside, user) != inside.end();
      });
      outside = outside || around == unit.modules.end();
      const std::string& module = around == unit.modules.end() ? user->name() : (*around)->name();
      if (std::ranges::find(modules, module) == modules.end()) {
        modules.push_back(module);
      }
    }
    if (outside) {
      std::vector<std::string> gathered;
      for (const nn::Module* const module : unit.modules) {
        gathered.push_back(module->name());
      }
      options_.refuse(fmt::format(
          "the tied parameter '{}' is gathered while '{}' runs, and other modules use it too; let "
          "'on' match all of them, and set together = [{{ on = [\"{}\"] }}]",
          fmt::join(names, "', '"), fmt::join(gathered, "', '"), fmt::join(modules, "\", \"")));
    }
  }

  /// Modules whose parameters are gathered together.
  struct Set {
    Patterns on;
    std::optional<std::size_t> unit = std::nullopt;
  };

  /// Parameters with one key are in one group. Gradients of one reduction have one type, and so has
  /// memory that can be recorded.
  struct GroupKey {
    std::size_t unit = 0;
    std::vector<int> stages = {};  // of a rank that has several: each has a backward of its own
    bool trained = false;
    bool extended = false;
    bool has_values = true;
    DType stored = DType::u8;
    DType computed = DType::u8;
    auto operator<=>(const GroupKey&) const = default;
  };

  fsdp::Settings& settings() const { return sharding_->settings(); }

  /// The axes along which parameters are sharded, in the mesh's order.
  void set_axes(const StyleTarget& target) {
    std::vector<int>& axes = settings().axes;
    axes = settings().options.shard_over_all_axes ? target.axes : std::vector<int>{target.axis};
    std::ranges::sort(axes);
    std::int64_t ranks = 1;
    for (const int axis : axes) {
      ranks *= target.mesh.axis_size(axis);
    }
    const std::int64_t keeping = settings().options.reshard_ranks;
    if (keeping == 1 || (keeping > 1 && ranks % keeping != 0)) {
      options_.refuse(
          fmt::format("option 'reshard_ranks' must be 0, or at least 2 and a divisor "
                      "of the {} ranks (got {}); to keep whole values, use "
                      "reshard_after_forward = false",
                      ranks, keeping));
    }
  }

  int dim_of(const nn::Parameter& parameter) {
    int dim = 0;
    for (auto& [on, given] : dims_) {
      if (any_matches(on, parameter)) {
        dim = given;
      }
    }
    return dim;
  }

  /// Whether the parameter is sharded; otherwise it is Replicate.
  bool place(nn::Parameter& parameter, const StyleTarget& target) {
    const std::vector<int>& axes = settings().axes;
    for (const int axis : target.axes) {
      if (std::ranges::find(axes, axis) == axes.end()) {
        target.place(parameter, axis, Replicate());
      }
    }
    const bool ignored = any_matches(ignore_, parameter);
    const bool sharded = !ignored &&
                         parameter.value.numel() >= settings().options.replicate_below &&
                         parameter.value.dims() > 0;
    const int dim = dim_of(parameter);
    if (sharded) {
      check_dim(parameter, dim, target);
    }
    for (const int axis : axes) {
      target.place(parameter, axis, sharded ? Placement(Shard(dim)) : Placement(Replicate()));
    }
    return sharded;
  }

  void check_dim(const nn::Parameter& parameter, int dim, const StyleTarget& target) const {
    const Dims& shape = parameter.value.shape();
    if (dim < 0 || dim >= shape.size()) {
      options_.refuse(fmt::format("option 'shard_dims': parameter '{}' {} has no dim {}",
                                  parameter.name, to_string(shape), dim));
    }
    const std::vector<int>& axes = settings().axes;
    if (axes.size() > 1) {
      std::int64_t parts = 1;
      for (const int axis : axes) {
        parts *= target.mesh.axis_size(axis);
      }
      if (shape[dim] % parts != 0) {
        options_.refuse(
            fmt::format("parameter '{}' {} cannot be sharded over {} axes: {} ranks must divide "
                        "dim {}; let 'ignore' match it, or choose another of its dims with "
                        "'shard_dims'",
                        parameter.name, to_string(shape), axes.size(), parts, dim));
      }
    }
  }

  Set* set_of(const nn::Module& module) {
    const auto found =
        std::ranges::find_if(sets_, [&](Set& set) { return any_matches(set.on, module); });
    return found == sets_.end() ? nullptr : &*found;
  }

  std::size_t unit_of(Set* set) {
    if (set == nullptr) {
      return sharding_->add_unit();
    }
    if (!set->unit) {
      set->unit = sharding_->add_unit();
    }
    return *set->unit;
  }

  /// Those of the rank's stages that compute with the parameter; none where it has at most one.
  static std::vector<int> stages_of(const nn::Parameter& parameter, nn::Module& model) {
    const ParallelPlan* const plan = plan_of(model);
    return plan == nullptr || plan->stages() == nullptr
               ? std::vector<int>()
               : plan->stages()->own_users(model, parameter);
  }

  /// The unit's group of parameters that are gathered and reduced like this one.
  fsdp::Group& group_of(std::size_t unit, const nn::Parameter& parameter,
                        const ShardExtension* extension, const StyleTarget& target) {
    GroupKey key{.unit = unit,
                 .stages = stages_of(parameter, target.model),
                 .trained = parameter.value.requires_grad(),
                 .extended = extension != nullptr,
                 .has_values = extension == nullptr || extension->has_values(),
                 .stored = fsdp::stored_type(parameter),
                 .computed = fsdp::computed_type(parameter)};
    if (key.trained && size_of(settings().options.reduce_dtype) == 2 &&
        size_of(key.computed) == 2 && settings().options.reduce_dtype != key.computed) {
      options_.refuse(fmt::format(
          "option 'reduce_dtype' must be f32 or the type of the gradients (expected f32 or {}, "
          "got {})",
          name_of(key.computed), name_of(settings().options.reduce_dtype)));
    }
    auto& slot = groups_[key];
    if (slot == nullptr) {
      const std::string name = target.module.name().empty() ? "." : target.module.name();
      sharding_->groups(unit).push_back(
          std::make_unique<fsdp::Group>(name, target.mesh, settings(), !key.stages.empty()));
      slot = sharding_->groups(unit).back().get();
    }
    return *slot;
  }

  std::shared_ptr<fsdp::Sharding> sharding_;
  Options options_;
  Patterns ignore_;
  std::vector<std::pair<Patterns, int>> dims_;
  std::vector<Set> sets_;
  nn::Module* model_ = nullptr;
  std::map<std::size_t, Unit> units_;
  std::map<GroupKey, fsdp::Group*> groups_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("FSDP",
                               [](Options& options) { return std::make_unique<Fsdp>(options); });
}
