export module tessera.optim:optimizer;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import :rule;

export namespace tessera::optim {

/// To which parameters weight decay applies: those of two or more dims (embeddings included), or
/// all.
enum class Decay : std::uint8_t { matrices, all };

/// Parameters with settings of their own.
struct ParameterGroup {
  /// Patterns over the parameters' names: "model.embed_tokens.*", "**.bias".
  std::vector<std::string> on = {};
  /// The group's learning rate is the optimizer's times this; none: as the others.
  std::optional<double> lr_scale = std::nullopt;
  /// Applies to all of the group's parameters, whatever their dims; none: as the others.
  std::optional<double> weight_decay = std::nullopt;
  /// The rule that updates them; null: as the others.
  std::shared_ptr<UpdateRule> rule = nullptr;
};

/// Options that every optimizer has.
struct OptimizerOptions {
  double weight_decay = 0;
  Decay decay = Decay::matrices;
  /// Groups of parameters. Where several match a parameter, the last one that has a setting decides
  /// it.
  std::vector<ParameterGroup> groups = {};
};

/// The optimizers of a parameter that exist, by numbers that no others get; attached to it.
struct Updaters {
  std::vector<std::uint64_t> optimizers = {};
};

/// Updates parameters from their gradients by rules. The state of a parameter has the parameter's
/// layout, or what the rule makes of it, and is created at its first step; a frozen parameter has
/// none.
class Optimizer {
 public:
  /// Errors (input): a pattern of a group that matches no parameter; a parameter whose shape or
  /// type its rule does not take.
  Optimizer(std::vector<nn::ParameterPointer> parameters, std::unique_ptr<UpdateRule> rule,
            const OptimizerOptions& options = {});
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step with this learning rate; gradients are multiplied by `grad_scale` first (clipping).
  /// All parameters with the same settings and number of steps are updated by one call of the rule.
  /// Parameters without a gradient do not change. Returns the numbers of those that were updated,
  /// which have taken a step more. Errors: a gradient whose layout is not its
  /// parameter's (both are named); a parameter or state that shares memory with another tensor of
  /// the step.
  /// `count`: of the steps of whoever calls; while a step is recorded, the counts of parameters
  /// follow from it.
  std::vector<std::size_t> step(const Number& lr, const Number& grad_scale = 1,
                                const Count& count = 0);
  /// Counts a step of the parameters of these numbers: one that was executed without step().
  void count_step(std::span<const std::size_t> updated);
  /// How many steps each parameter has taken, in the order of parameters().
  std::vector<std::int64_t> steps() const;
  /// Drops all gradients.
  void zero_grad();

  /// "exp_avg.<parameter>" and so on, and each parameter's step count.
  StateDict state() const;
  /// Creates the state that a first step would create, for all parameters, to be filled by a load.
  void prepare_state();
  /// Reads the step counts after a load; the tensors were loaded in place. Errors: missing or
  /// unexpected names.
  void load_scalars(const StateDict& state);

  const std::vector<nn::ParameterPointer>& parameters() const { return parameters_; }
  /// Whether all of its rules are UpdateRule::is_elementwise().
  bool is_elementwise() const;
  /// Expires with the optimizer.
  std::weak_ptr<const bool> life() const { return life_; }

 private:
  /// The settings and the state of one parameter.
  struct Entry {
    std::size_t rule = 0;
    double lr_scale = 1;
    double weight_decay = 0;
    std::vector<Tensor> tensors;  // undefined: the parameter has no such state
    std::int64_t step = 0;
  };
  struct Rule {
    std::shared_ptr<UpdateRule> update;
    std::vector<StateTensor> states;
  };
  /// Tensors that one call of a rule updates.
  struct Part {
    std::size_t rule = 0;
    UpdateGroup group;
    std::vector<std::size_t> members = {};  // the numbers of the parameters
  };
  std::size_t add_rule(std::shared_ptr<UpdateRule> rule);
  /// Gives parameters that a rule does not take to its fallback().
  void assign_fallbacks();
  /// Error (input): a parameter of a type that its rule does not update.
  void check_types() const;
  static UpdateGroup settings(const Entry& entry, const Number& lr, const Number& grad_scale,
                              const Count& count);
  Entry& prepared(std::size_t i);
  /// Parts of one step, each updated by one call of a rule.
  std::vector<Part> parts(const Number& lr, const Number& grad_scale, const Count& count);
  /// Calls the rule. Where some of the part's tensors are kept elsewhere, it is called for one
  /// piece after the other, while the next one is fetched.
  void update(const Part& part);
  /// For parameters `first` to `last` - 1 of the part.
  void each_kept_elsewhere(const Part& part, std::size_t first, std::size_t last,
                           void (MemoryPlace::*call)(const Tensor&)) const;
  bool is_trained(std::size_t i) const;

  std::vector<nn::ParameterPointer> parameters_;
  std::vector<Rule> rules_;
  std::vector<Entry> entries_;
  std::uint64_t number_;  // see Updaters
  std::shared_ptr<const bool> life_;
};

/// Notes the optimizers that this thread makes within its scope.
class OptimizerWatch {
 public:
  OptimizerWatch();
  ~OptimizerWatch();
  OptimizerWatch(const OptimizerWatch&) = delete;
  OptimizerWatch& operator=(const OptimizerWatch&) = delete;

  /// Those that are not destroyed, in the order in which they were made.
  const std::vector<Optimizer*>& made() const { return made_; }

 private:
  friend class Optimizer;
  static OptimizerWatch*& watching();

  OptimizerWatch* before_;
  std::vector<Optimizer*> made_;
};

/// An optimizer with the rule of its name; errors of Optimizer.
std::unique_ptr<Optimizer> adamw(std::vector<nn::ParameterPointer> parameters,
                                 const AdamWOptions& rule = {},
                                 const OptimizerOptions& options = {.weight_decay = 0.1});
std::unique_ptr<Optimizer> sgd(std::vector<nn::ParameterPointer> parameters,
                               const SgdOptions& rule = {}, const OptimizerOptions& options = {});

}  // namespace tessera::optim
