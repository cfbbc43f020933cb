export module tessera.graph:anchor;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// A call that only marks a place: a module's forward is one, and a change (graph::Change) puts
/// what is computed there after all passes, in forward and in backward (Editor::find,
/// Editor::replace).
struct Anchor {
  /// "expert_block(hidden, experts, weight)": its name and operands, as Op::schema.
  std::string schema = {};
  /// Shapes and types of its results, from those of the operands. Errors: they do not fit.
  void (*infer)(const Call& call, ResultShapes& out) = nullptr;
  std::string about = {};
};

/// Registers it as an operator, and its gradient as another one, "NAME_backward". The gradient has
/// the operands of the call, then the gradients of its results ("-" in a program's text: zero), and
/// one result for each operand of the call, of its shape and type; those of operands that need
/// none, and of integers, are unused. Neither computes anything, and each is ordered like a call
/// that communicates: passes merge, move and remove none, and move no communication past one. They
/// take local tensors: a module calls one within local_map. Errors: see register_op.
const Op& register_anchor(const Anchor& anchor);

/// Whether register_anchor has registered it.
bool is_anchor(const Op& op);

/// Error (input): a call of an anchor is left in the program; its name and its module.
void check_no_anchors(const Program& program);

}  // namespace tessera::graph
