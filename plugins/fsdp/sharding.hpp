// When the groups of one style gather, free and reduce: the hooks of forward and backward.
#pragma once

// Included after the imports of tessera's modules.

#include "group.hpp"

namespace fsdp {

/// Modules whose parameters are gathered together: a group for each pair of types, that of the
/// parameters and that of forward, as a collective has one type.
struct Unit {
  std::vector<tessera::nn::Module*> modules = {};
  std::vector<std::string> names = {};  // of the modules, which a graph may outlive
  std::vector<std::unique_ptr<Group>> groups = {};
  /// What is gathered ahead, where the program has said it; otherwise what followed in the last
  /// pass.
  std::optional<std::vector<std::size_t>> forward_prefetch = std::nullopt;
  std::optional<std::vector<std::size_t>> backward_prefetch = std::nullopt;
  std::size_t ran = 0;  // of the modules, in this forward
  bool began = false;   // its backward
};

/// What the hooks share. Modules and graphs keep it alive, whatever becomes of the plan.
class Sharding : public tessera::parallel::ShardedParameters,
                 public std::enable_shared_from_this<Sharding> {
 public:
  /// Which keeps nothing of itself alive.
  static std::shared_ptr<Sharding> make(Settings settings);

  Settings& settings() { return settings_; }
  /// A new unit, without modules.
  std::size_t add_unit();
  /// Hooks the module, one of the unit's.
  void add(std::size_t unit, tessera::nn::Module& module);
  std::vector<std::unique_ptr<Group>>& groups(std::size_t unit) { return units_[unit].groups; }

  template <class F>
  void for_each_group(F f) {
    for (Unit& unit : units_) {
      for (const auto& group : unit.groups) {
        f(*group);
      }
    }
  }

  void unshard(std::string_view module) override;
  void start_unshard(std::string_view module) override;
  void reshard(std::string_view module) override;
  void set_reshard_after_forward(bool reshard) override {
    settings_.options.reshard_after_forward = reshard;
  }
  void set_reshard_after_backward(bool reshard) override {
    settings_.options.reshard_after_backward = reshard;
  }
  void set_forward_prefetch(std::string_view module, const std::vector<std::string>& next) override;
  void set_backward_prefetch(std::string_view module,
                             const std::vector<std::string>& next) override;
  void set_gradient_sync(bool sync) override { gradient_sync_ = sync; }
  void set_gradient_factor(double factor) override {
    if (factor != settings_.gradient_factor) {
      settings_.gradient_factor = factor;
      note_change();
    }
  }
  void set_reduction_hook(tessera::parallel::ReductionHook hook) override {
    const bool had_one = static_cast<bool>(settings_.reduction_hook);
    settings_.reduction_hook = std::move(hook);
    if (had_one || settings_.reduction_hook) {
      note_change();
    }
  }

  /// Parameters may be written from here on.
  void settle();

 private:
  struct Backward;
  explicit Sharding(Settings settings) : settings_(std::move(settings)) {}

  /// Tells captured steps that settings have changed.
  void note_change();
  std::size_t unit_of(std::string_view module) const;
  std::vector<std::size_t> units_of(const std::vector<std::string>& modules) const;
  void start(const Unit& unit);
  void fetch(const Unit& unit);

  void before_forward(std::size_t index);
  void cast_outputs(std::size_t index, tessera::Tensors& outputs) const;
  void after_forward(std::size_t index, const tessera::Tensors& outputs);
  /// Whether backward begins with the unit, whose forward ends now: the outermost one, and the one
  /// that ended before it in the last pass. Freeing their values would only gather them again.
  bool begins_backward(std::size_t index) const;
  void end_forward(std::size_t index);
  /// A backward, or the second half of one, begins.
  void begin_backward();
  void before_backward(std::size_t index);
  /// Issues the gathers of what follows unit `index`, at `place` in this order.
  void prefetch(std::size_t index, const std::optional<std::vector<std::size_t>>& given,
                const std::vector<std::size_t>& order, std::size_t place);
  /// Makes `last_` the last pass in which the unit was.
  void recall(std::size_t index);
  /// Groups that backward, which has come to unit `now`, has no more use for: all their gradients
  /// have arrived. Where one may be missing, which other ranks have, all units before this one
  /// that are not around it.
  void reduce_complete_groups(std::size_t now);
  /// What backward has still to come to, in the order of the last forward.
  std::vector<std::size_t>::const_iterator rest_of_backward() const;
  bool is_around(const Unit& outer, const Unit& inner) const;
  /// The backward, of which this may be a half, has come past the group.
  void end_backward(Group& group);
  /// In the second half of a backward: reduces groups whose gradients are complete.
  void gradient_arrived();
  void finish_backward();

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
  /// The units in the order in which the outermost one's forward began them, and in the reverse of
  /// the order in which it ended them: now, and in its last complete pass.
  struct Order {
    std::vector<std::size_t> begun = {};
    std::vector<std::size_t> ended = {};
  };
  Order now_;
  Order last_;
  /// The last passes whose units differ: those of a rank's several stages.
  std::vector<Order> passes_;
  std::size_t backward_place_ = 0;  // in the reverse of last_.ended
  Reduction reducing_;
  std::weak_ptr<Backward> backward_;
};

}  // namespace fsdp
