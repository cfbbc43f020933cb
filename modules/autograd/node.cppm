export module tessera.autograd:node;

import tessera.base;
import tessera.tensor;

export namespace tessera {

/// Changes or replaces a gradient; an undefined result leaves it as it is.
using GradientHook = std::function<Tensor(const Tensor& gradient)>;

/// One recorded step of the forward: knows how to turn gradients of its results into gradients of
/// its operands.
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
  /// grads: one for each result, undefined where none arrived. out: one for each edge.
  virtual void backward(std::span<const Tensor> grads, std::span<Tensor> out,
                        bool create_graph) = 0;
  /// Frees what was saved; a second backward is then an error.
  virtual void release_saved();

  InlineVector<Edge, 3> next;
  std::size_t results;
  /// Later steps have higher numbers; the engine runs the highest first.
  std::uint64_t sequence;
  /// The module in whose forward the step was recorded; null outside of any.
  const std::string* module = current_module();
  /// Hooks on the gradient of result i, in the order in which they were added.
  std::vector<std::pair<int, GradientHook>> hooks;
};

/// What a tensor carries: for a computed one the step that made it, for a leaf its accumulator and
/// hooks.
class GradState : public AutogradState {
 public:
  std::shared_ptr<Node> node;  // null for leaves
  int result = 0;
  std::weak_ptr<Node> accumulator;
  std::vector<GradientHook> leaf_hooks;
  std::vector<std::function<void(Tensor& leaf)>> post_accumulate_hooks;
};

/// The tensor's state; null when it has none.
GradState* grad_state(const Tensor& x);
/// The step (or the leaf's accumulator) into which this tensor's gradient goes.
Node::Edge gradient_edge(const Tensor& x);
/// Says that `x` is result `result` of `node`.
void set_history(const Tensor& x, std::shared_ptr<Node> node, int result);
/// Whether `x` is a leaf: a tensor that was not computed from others that need gradients.
bool is_leaf(const Tensor& x);

using FunctionBackward = std::function<void(std::span<const Tensor> grads, std::span<Tensor> out)>;

/// Makes `outputs` (computed from `inputs` under NoGrad) a recorded step of the program's own.
/// Outputs must be tensors of their own: pass detached(x) for an identity. Nothing is recorded when
/// no input needs a gradient, unless `always`.
void record_function(std::string name, std::span<const Tensor> inputs,
                     std::span<const Tensor> outputs, FunctionBackward backward,
                     bool always = false);

}  // namespace tessera
