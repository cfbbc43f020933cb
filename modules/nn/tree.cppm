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
  friend struct ModuleHooks;
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
/// which runs the hooks. What only some layers have (LayerSplits, PackedWeights, TrainedUpdate,
/// StepEnd), and what plans know of a module, is attached to it.
class Module : public Attachments {
 public:
  Module();
  virtual ~Module();
  using Attachments::attach;

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

  HookHandle add_pre_hook(ForwardPreHook hook);
  HookHandle add_hook(ForwardHook hook);
  /// The hook runs before the existing ones (an outer style around inner ones).
  HookHandle add_outer_pre_hook(ForwardPreHook hook);
  /// Counts a change of what calls compute that is no tensor: call it after you have set an
  /// attribute that forward reads, so that captured steps notice. Styles do for their settings.
  void note_change();

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
  friend struct ModuleHooks;
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

/// What a module attaches to itself whose own state follows from what a step has computed. A
/// training calls it when the gradients of the step are complete, on all ranks together, without
/// recording.
struct StepEnd {
  std::function<void()> call;
};
/// Calls the StepEnd of each module below `root`, in the order of the tree.
void end_step(Module& root);

/// Attached to each module to which a plan was applied: its children are no longer replaced.
struct PlanState {
  bool applied = false;
};
/// Attached by Module::note_change: how often it was called.
struct Changes {
  std::uint64_t count = 0;
};
/// Attached by scopes that switch parts of a layer off, a bit for each.
struct PartSwitches {
  std::uint64_t parts = 0;
};

/// All parameters below `root`, each once (tied weights under their first name), in the order of
/// the tree.
std::vector<ParameterPointer> all_parameters(Module& root);
/// The values of parameters by their names, as files have them.
std::map<std::string, Tensor> values_by_name(std::span<const ParameterPointer> parameters);
/// All qualified names with their parameters, tied ones under each of their names.
std::vector<std::pair<std::string, ParameterPointer>> named_parameters(Module& root);
/// All buffers below `root`, each once, in the order of the tree.
std::vector<BufferPointer> all_buffers(Module& root);

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
/// "init": bit-identical in every layout. What layers train beside their weights comes last, so the
/// model is the same with and without it.
void initialize(Module& root);
/// Initialises only these; every rank names the same ones in the same order.
void initialize(std::span<const ParameterPointer> parameters);
/// Elements of all parameters (global).
std::int64_t parameter_count(Module& root);

}  // namespace tessera::nn
