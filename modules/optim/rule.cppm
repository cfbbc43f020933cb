export module tessera.optim:rule;

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.tensor;

export namespace tessera::optim {

/// A tensor that an optimizer keeps for each parameter, 0 at the start.
struct StateTensor {
  std::string name;                           // "exp_avg"; in checkpoints "exp_avg.<parameter>"
  std::optional<DType> dtype = std::nullopt;  // none: the parameter's
  /// Makes the state of a parameter that has not the parameter's shape and layout; the parameter
  /// may be on the meta device. It returns an undefined tensor for a parameter without this state.
  /// Null: zeros like the parameter.
  std::function<Tensor(const Tensor& parameter)> make = {};
};

/// The state of a parameter before its first step.
Tensor make_state(const StateTensor& state, const Tensor& parameter);

/// Parameters that one call updates: lists of one length. All are plain, or distributed over one
/// mesh; a gradient has its parameter's layout.
struct UpdateGroup {
  Count step = 0;           // of these parameters, from 1
  Number lr = 0;            // of this step
  double weight_decay = 0;  // 0 for parameters that do not decay
  Number grad_scale = 1;    // gradients are multiplied by it first (clipping)
  /// The numbers of the parameters among the optimizer's, which no layout changes.
  std::vector<std::size_t> numbers = {};
  std::vector<Tensor> parameters = {};
  std::vector<Tensor> gradients = {};
  std::vector<std::vector<Tensor>> states = {};  // a list for each of states(); see StateTensor
};

/// The plugin kind "optimizer": how parameters follow from their gradients. Everything else (which
/// parameters, groups, learning rates, the state and its names in checkpoints) is Optimizer's.
class UpdateRule {
 public:
  static constexpr plugin::Kind plugin_kind{"optimizer"};
  using Factory = std::function<std::unique_ptr<UpdateRule>(PluginOptions& options)>;

  virtual ~UpdateRule();
  /// Tensors that are kept for each parameter.
  virtual std::vector<StateTensor> states() const = 0;
  /// Writes parameters and states in place, with operators; runs without a gradient. What it
  /// computes from the group's step, lr and grad_scale must stay a Number until an operator takes
  /// it, so that a captured step computes it again; a plain number is the same in every step.
  virtual void update(const UpdateGroup& group) = 0;
  /// Whether it updates parameters of this shape. Others are updated by fallback().
  virtual bool takes(const Dims& shape) const;
  /// Whether an element's update follows from the numbers of that element alone, so that it has the
  /// same bits in every sharding: no, unless it says otherwise.
  virtual bool is_elementwise() const;
  /// Whether it updates parameters that are stored in this type: f32 and f64, unless it says
  /// otherwise. Another rule than it does not help: such parameters are an error.
  virtual bool takes_type(DType dtype) const;
  /// The rule of parameters that this one does not take, and what their learning rate is multiplied
  /// by. Null: such parameters are an error.
  struct Fallback {
    std::shared_ptr<UpdateRule> rule;
    double lr_scale = 1;
  };
  virtual Fallback fallback() const;
};

/// Options of AdamW.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  bool amsgrad = false;
  bool maximize = false;
};
/// Decoupled weight decay, bias correction. Source: Loshchilov and Hutter, 2019. Parameters in bf16
/// have their state in bf16; both are rounded with the random numbers of the stream "rounding"
/// (docs/random-numbers.md).
std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options = {});

/// Options of SGD.
struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
  double dampening = 0;
  bool maximize = false;
};
/// Weight decay is added to the gradient.
std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options = {});

/// The rule of this name: a built-in one (docs/optimizers.md), or what a plugin provides. `where`
/// is the prefix of errors about options. Errors (input): no such optimizer (with the nearest
/// name); options that it does not have.
std::unique_ptr<UpdateRule> load_rule(std::string_view name, std::string_view options = "{}",
                                      const std::string& where = "options");
/// Loads a rule with options that are read from a table of other options: finish() of those covers
/// them.
std::unique_ptr<UpdateRule> load_rule(std::string_view name, PluginOptions& options);

/// Error (input) that begins with `where`: no rule of this name is built in or found as a plugin.
void check_rule_name(std::string_view name, const std::string& where = "optimizer");

/// The names of the rules that need no plugin.
std::vector<std::string> built_in_rules();

}  // namespace tessera::optim
