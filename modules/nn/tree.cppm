export module tessera.nn:tree;

import tessera.base;
import tessera.tensor;
import :attachments;
import :parameter;

export namespace tessera::nn {

/// A value and the name of the input that it is passed to.
struct NamedTensor {
  std::string_view name;
  Tensor value;
};

class Module;
struct ModuleHooks;
/// A hook that was added to a module. Destroying the handle does not remove the hook.
class HookHandle {
 public:
  HookHandle() = default;
  /// Removes the hook, from the module's next call on: a call that has begun still runs it. A
  /// second call, and one after the module is gone, change nothing.
  void remove();

 private:
  friend class Module;
  HookHandle(std::weak_ptr<ModuleHooks> hooks, std::uint64_t number)
      : hooks_(std::move(hooks)), number_(number) {}

  std::weak_ptr<ModuleHooks> hooks_;
  std::uint64_t number_ = 0;
};

/// May replace the inputs before forward.
using ForwardPreHook = std::function<void(Module& module, Tensors& inputs)>;
/// May replace the outputs after forward.
using ForwardHook = std::function<void(Module& module, const Tensors& inputs, Tensors& outputs)>;

/// A child as its parent calls it: the module that has this place now. Keep it as a member of the
/// parent, instead of a pointer to the module, so that the child can be replaced.
class Child {
 public:
  /// No child.
  Child() = default;
  explicit operator bool() const { return parent_ != nullptr; }
  Module& operator*() const;
  Module* operator->() const { return &**this; }
  /// The module itself, for who must keep it alive; while somebody does, it cannot be replaced.
  std::shared_ptr<Module> pointer() const;

 private:
  friend class Module;
  Child(const Module& parent, std::size_t index) : parent_(&parent), index_(index) {}

  const Module* parent_ = nullptr;
  std::size_t index_ = 0;
};

/// Result of add_child: a pointer to the new module, and its place as a Child.
template <class M>
class AddedChild {
 public:
  AddedChild(std::shared_ptr<M> module, Child child) : module_(std::move(module)), child_(child) {}
  operator std::shared_ptr<M>() const { return module_; }
  operator Child() const { return child_; }
  M& operator*() const { return *module_; }
  M* operator->() const { return module_.get(); }

 private:
  std::shared_ptr<M> module_;
  Child child_;
};

/// Makes the module that takes another one's place.
using Replacement = std::function<std::shared_ptr<Module>(const std::shared_ptr<Module>& before)>;

/// A node of the model's tree: parameters, buffers, children, forward. Called through operator(),
/// which runs the hooks.
class Module {
 public:
  Module();
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual std::string_view kind() const = 0;  // "Linear"
  virtual Tensors forward(const Tensors& inputs) = 0;

  /// Calls forward with the hooks around it. Named inputs that are not given are absent
  /// (undefined). Errors: more inputs than input_names().
  Tensors operator()(const Tensors& inputs);
  /// One input; the first output. Errors: there is none.
  Tensor operator()(const Tensor& input);
  /// Calls another method with the hooks around it, as if it were forward: styles then provide
  /// the module's parameters and convert `inputs` and outputs, which are those of forward, too.
  ///   Tensors codes = encoder.call({x}, [&](const Tensors& in) { return encoder.encode(in); });
  Tensors call(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& method);
  /// Calls a method whose outputs are not those of forward, as it computes on with them: the hooks
  /// are called around it, so styles provide the parameters, convert `inputs` and see what
  /// backward begins with; conversions of outputs are not.
  Tensors call_beyond(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& method);
  /// The outputs of forward as conversions of outputs make them.
  Tensors convert_outputs(const Tensors& inputs, Tensors outputs);
  /// Calls the module with inputs by name, in any order; inputs that are not given are absent
  /// (undefined). Errors: a name that is not in input_names().
  Tensors by_name(std::initializer_list<NamedTensor> inputs);

  /// The names of forward's inputs and outputs, by position. Parts of a nested value have dots:
  /// "cache.keys". Empty: they have positions only. Any value may be absent (undefined).
  virtual std::vector<std::string> input_names() const;
  virtual std::vector<std::string> output_names() const;

  /// The path from the root, "model.layers.0.mlp"; empty for the root. Filled by set_names.
  const std::string& name() const { return name_; }
  /// Names this module and all below it; the root calls it once the tree is built. A module or
  /// parameter that is in several places has the name of the first.
  void set_names(const std::string& name = "");

  const std::vector<std::pair<std::string, ParameterPointer>>& parameters() const {
    return parameters_;
  }
  const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children() const {
    return children_;
  }
  const std::vector<std::pair<std::string, BufferPointer>>& buffers() const { return buffers_; }
  /// The parameter with this name. Errors: there is none.
  const ParameterPointer& parameter(std::string_view name) const;
  /// Replaces a parameter of this module by another module's (tied weights). Errors: no parameter
  /// has this name; the shape or type differs.
  void set_parameter(std::string_view name, ParameterPointer parameter);

  /// The buffer with this name. Errors: there is none.
  const BufferPointer& buffer(std::string_view name) const;
  /// Puts what `make` returns in the place of the child with this name, and renames what is inside.
  /// The new module may contain the one before. Before a plan is applied. Errors: there is no such
  /// child; nothing is made; a plan was applied; somebody else holds a pointer to the child, and
  /// would go on calling it (its parent must keep it as a Child).
  void replace_child(std::string_view name, const Replacement& make);

  /// How styles can split this layer over the ranks of a mesh axis. None by default.
  virtual std::vector<LayerSplit> splits() const;
  /// The split of this name. Error (input): the layer has none; the text names those that it has.
  LayerSplit split(std::string_view name) const;
  /// A style has applied the split: from now on forward gets shards. Does nothing by default.
  virtual void use_split(std::string_view name);

  /// Weights that this layer keeps in another form. None by default.
  virtual std::vector<PackedWeight> packed_weights() const;
  /// The update that this layer trains beside its weight, for who writes or reads it alone, or
  /// merges it with the weight. None by default. A layer that has one computes without it while
  /// !uses_update().
  virtual std::optional<LowRankUpdate> low_rank_update() const;
  /// False within a WithoutUpdatesScope.
  bool uses_update() const { return uses_update_; }

  HookHandle add_pre_hook(ForwardPreHook hook);
  HookHandle add_hook(ForwardHook hook);
  /// A hook that does nothing but replace outputs of forward by the same values in another layout
  /// or type; it runs with the others, in the order in which all were added.
  HookHandle add_conversion(ForwardHook hook);
  /// The hook runs before the existing ones (an outer style around inner ones).
  HookHandle add_outer_pre_hook(ForwardPreHook hook);
  /// Which hooks a call runs now: another number after one was added, removed or replaced.
  std::uint64_t hooks_identity() const;

  /// Counts a change of what calls compute that is not a tensor: call it after you have set an
  /// attribute that forward reads, so that captured steps notice. Styles do for their settings.
  void note_change() { ++changes_; }
  std::uint64_t changes() const { return changes_; }
  /// Expires with the module.
  std::weak_ptr<const bool> life() const { return life_; }

  /// Keeps `owner` alive as long as the module. For code whose hooks refer to an object of its own.
  void keep_alive(std::shared_ptr<const void> owner);
  /// Objects that others attach to this module.
  Attachments& attachments() { return attachments_; }
  const Attachments& attachments() const { return attachments_; }
  /// Whether a parallel plan was applied to this module; set by the plan.
  bool is_planned() const { return planned_; }
  void set_planned() { planned_ = true; }

  /// Called when all styles have placed the parameters; `axes` are the mesh axes along which the
  /// ranks share the work on one part of the batch. Errors (input): placements with which forward
  /// would be wrong (heads that do not divide).
  virtual void check_placements(std::span<const int> axes) const;

  /// A training calls it when the gradients of a step are complete, on all ranks together, without
  /// recording: for state of the module's own that follows from what the step has computed. Does
  /// nothing by default.
  virtual void end_step();

  /// Whether dropout is active; sets this module and all below it.
  void train(bool training = true);
  bool is_training() const { return training_; }

 protected:
  /// The input at this position, for forward. Errors: it is absent.
  const Tensor& input(const Tensors& inputs, std::size_t position) const;
  /// Errors, here and in attach: the name is taken, or empty; nothing is given.
  void add_parameter(std::string name, ParameterPointer parameter);
  void add_buffer(std::string name, BufferPointer buffer);
  template <class M, class... A>
  AddedChild<M> add_child(std::string name, A&&... arguments) {
    std::shared_ptr<M> child(new M(std::forward<A>(arguments)...));
    return {child, attach(std::move(name), child)};
  }
  Child attach(std::string name, std::shared_ptr<Module> child);

 private:
  friend class Child;
  friend class EvaluationScope;
  friend class WithoutUpdatesScope;
  template <class Method>
  Tensors in_scope(const Tensors& inputs, const Method& method, bool converts);
  template <class Method>
  Tensors with_hooks(const Tensors& inputs, const Method& method, bool converts);
  ModuleHooks& hooks();
  /// How many inputs have names; counted at the first call.
  std::size_t named_inputs();

  std::string name_;
  const std::string* scope_ = interned_name("");  // the name, for ModuleScope
  std::optional<std::size_t> named_inputs_;
  bool training_ = true;
  bool uses_update_ = true;
  bool planned_ = false;
  std::uint64_t changes_ = 0;
  std::shared_ptr<const bool> life_ = std::make_shared<const bool>(true);
  Attachments attachments_;
  std::vector<std::shared_ptr<const void>> kept_alive_;
  std::vector<std::pair<std::string, ParameterPointer>> parameters_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::vector<std::pair<std::string, BufferPointer>> buffers_;
  std::shared_ptr<ModuleHooks> hooks_;  // null: none was ever added
};

/// Within the scope a module and all below it are in evaluation mode (no dropout). Afterwards, also
/// when something has thrown, each one has the mode that it had before.
class EvaluationScope {
 public:
  explicit EvaluationScope(Module& root);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> before_;
};

/// Within the scope the low-rank updates of a module and all below it are switched off: the model
/// computes as if it had none.
class WithoutUpdatesScope {
 public:
  explicit WithoutUpdatesScope(Module& root);
  ~WithoutUpdatesScope();
  WithoutUpdatesScope(const WithoutUpdatesScope&) = delete;
  WithoutUpdatesScope& operator=(const WithoutUpdatesScope&) = delete;

 private:
  std::vector<Module*> off_;
};

/// Notes modules of this thread within its scope, for who captures what a function computes.
class ModuleWatch {
 public:
  ModuleWatch();
  ~ModuleWatch();
  ModuleWatch(const ModuleWatch&) = delete;
  ModuleWatch& operator=(const ModuleWatch&) = delete;

  /// Those that were made and are not destroyed, in the order in which they were made.
  const std::vector<Module*>& made() const { return made_; }
  /// Those that were called by no other module, such as models: each once, in the order of their
  /// first calls.
  const std::vector<Module*>& called() const { return called_; }

 private:
  friend class Module;
  static ModuleWatch*& watching();
  void note_call(Module& module);

  ModuleWatch* before_;
  std::vector<Module*> made_;
  std::vector<Module*> called_;
};

/// This module and all below it, each once, parents first, in the order in which they were added.
std::vector<Module*> all_modules(Module& root);

/// Calls end_step() of each module below `root`, in the order of the tree.
void end_step(Module& root);

/// All parameters below `root`, each once (tied weights under their first name), in the order of
/// the tree.
std::vector<ParameterPointer> all_parameters(Module& root);
/// The values of parameters by their names, as files have them.
std::map<std::string, Tensor> values_by_name(std::span<const ParameterPointer> parameters);
/// All qualified names with their parameters, tied ones under each of their names.
std::vector<std::pair<std::string, ParameterPointer>> named_parameters(Module& root);
/// All buffers below `root`, each once, in the order of the tree.
std::vector<BufferPointer> all_buffers(Module& root);

/// The parameters of all low-rank updates below `root`: a folder of the model's weights has none of
/// them. In the order of the tree.
std::vector<ParameterPointer> update_parameters(Module& root);

/// Replaces every module whose qualified name matches the pattern (see matches_pattern) by what
/// `make` returns for it (see Module::replace_child). Returns how many. Errors (input): the pattern
/// matches no module; it matches the root; a match is inside of another match.
int replace_modules(Module& root, const std::string& pattern, const Replacement& make);

/// Whether one of the parameter's names (a tied one has several) matches the pattern (see
/// matches_pattern).
bool matches(const Parameter& parameter, const std::string& pattern);
/// Places in `parameters` of those that match the pattern. Error (input): there is none; the
/// nearest name is offered.
std::vector<std::size_t> matching_parameters(std::span<const ParameterPointer> parameters,
                                             const std::string& pattern);
/// Freezes the parameters that match one of the patterns (see matching_parameters): they get no
/// gradient, an optimizer keeps no state for them, and nothing is reduced. Before styles are
/// applied. Errors (input): a pattern that matches no parameter; no parameter is left to train.
void freeze(Module& root, std::span<const std::string> patterns);

/// Allocates memory of `device` for every parameter that is still on the meta device (for the local
/// part only), and gives buffers their values there. Frozen parameters stay frozen.
void materialize(Module& root, Device device = cpu);
/// Initialises all parameters and packed weights, each by its Initialization, from the stream
/// "init": bit-identical in every layout. Low-rank updates come last, so the model is the same with
/// and without them.
void initialize(Module& root);
/// A tensor for the first values of a packed weight, not initialised.
Tensor first_values(const PackedWeight& weight);
/// Initialises only low-rank updates (update_parameters), as initialize() of the whole model does
/// where everything else has values from elsewhere.
void initialize_updates(Module& root);
/// Initialises only these; every rank names the same ones in the same order.
void initialize(std::span<const ParameterPointer> parameters);
/// Elements of all parameters (global).
std::int64_t parameter_count(Module& root);

}  // namespace tessera::nn
