export module tessera.autograd:node;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Replaces a gradient: returns the new one, or an undefined tensor to leave it as it is. A hook
/// must not write the gradient that it is given, which other steps may share.
using GradientHook = std::function<Tensor(const Tensor& gradient)>;

/// One recorded step of the forward: turns gradients of its results into gradients of its operands.
class Node {
 public:
  struct Edge {
    std::shared_ptr<Node> node;  // null: that operand needs no gradient
    int result = 0;              // which result of `node` the operand is
  };

  explicit Node(std::size_t results);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual std::string_view name() const = 0;
  /// "operand 1 ('w')", for errors.
  virtual std::string operand_name(std::size_t i) const;
  /// grads: one for each result, undefined where none arrived; may be taken. out: one for each
  /// edge.
  virtual void backward(std::span<Tensor> grads, std::span<Tensor> out, bool create_graph) = 0;
  /// Fills in the gradients of operands that were left out; called once at most.
  using Rest = std::function<void(std::span<Tensor> out)>;
  /// The same without create_graph; but gradients of the operands that `later` marks (one for each
  /// edge) may be left to the function that is returned. None: all are in `out`.
  virtual Rest backward_apart(std::span<Tensor> grads, std::span<Tensor> out,
                              const std::vector<bool>& later);
  /// Calls the hooks on the gradients of the results, in the order in which they were added.
  virtual void run_hooks(std::span<Tensor> grads);
  /// Frees what was saved; a second backward is then an error.
  virtual void release_saved();

  /// Adds an edge to what `x` was computed by, and notes what its gradient must fit.
  void add_operand(const Tensor& x);

  InlineVector<Edge, 3> next;
  /// Shapes, types and meshes of the operands: their gradients have the same.
  InlineVector<Dims, 3> operand_shapes;
  InlineVector<DType, 4> operand_dtypes;
  InlineVector<SpecHandle, 4> operand_specs;
  std::size_t results;
  /// Later steps have higher numbers; the engine runs the highest first.
  std::uint64_t sequence;
  /// The module in whose forward the step was recorded; null outside of any.
  const std::string* module = current_module();
  CallPermissions permissions = call_permissions();
  /// Hooks on the gradient of result i.
  std::vector<std::pair<int, GradientHook>> hooks;
};

/// Autograd's part of a tensor: for a computed one the step that made it, for a leaf its
/// accumulator and hooks.
class GradState : public AutogradState {
 public:
  bool is_computed() const override;

  std::shared_ptr<Node> node;  // null for leaves
  int result = 0;
  std::weak_ptr<Node> accumulator;
  std::vector<GradientHook> leaf_hooks;
  std::vector<std::function<void(Tensor& leaf)>> post_accumulate_hooks;
  std::vector<std::function<void(Tensor& leaf)>> final_accumulate_hooks;  // after those
};

/// The tensor's state; null when it has none.
GradState* grad_state(const Tensor& x);
/// The step (or the leaf's accumulator) into which this tensor's gradient goes.
Node::Edge gradient_edge(const Tensor& x);
/// Makes `x` result `result` of `node`.
void set_history(const Tensor& x, std::shared_ptr<Node> node, int result);
/// Whether `x` is a leaf: a tensor that was not computed from others that need gradients.
bool is_leaf(const Tensor& x);

/// A tensor that a step keeps for its backward, with the version of its memory at that time. A step
/// of the program's own (record_function) keeps its tensors in this form too.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(Tensor x);

  /// The tensor, undefined if none was saved. `user` names the step in errors.
  /// Errors: the memory was written since the tensor was saved, or was released.
  const Tensor& get(std::string_view user) const;
  /// Gets a tensor whose memory may be released for the moment (a parameter that the step
  /// gathers again). Error: the memory was written.
  const Tensor& get_unfilled(std::string_view user) const;

 private:
  Tensor value_;
  std::uint64_t version_ = 0;
};

/// grads: one for each output, undefined where none arrived; they must not be written. out: to be
/// filled for each input; one that stays undefined passes no gradient on.
using FunctionBackward = std::function<void(std::span<const Tensor> grads, std::span<Tensor> out)>;

/// Makes `outputs` (computed from `inputs` under NoGrad) a recorded step of the program's own.
/// Outputs must be tensors of their own: pass detached(x) for an identity. Nothing is recorded when
/// no input needs a gradient. Tensors that `backward` needs are kept as SavedTensor.
/// Errors, in backward: a gradient that does not fit its input names the function and the input.
void record_function(std::string name, std::span<const Tensor> inputs,
                     std::span<const Tensor> outputs, FunctionBackward backward);

}  // namespace tessera
