module tessera.dtensor:redistribution_steps;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import :redistribution;

namespace tessera {

// Shared parts of the conversions: a Spec among the attributes, and checks of their operand.
inline SpecHandle with_layout(const Spec& spec, const Layout& layout) {
  return Spec::make(layout, spec.shape, spec.dtype);
}
/// Errors: x is not a distributed (a plain) tensor.
void require_distributed(const Tensor& x, const char* what);
void require_plain(const Tensor& x, const char* what);

/// The state of a redistribution of this rank's part between two of its steps. `how` outlives it.
struct Walk {
  const Redistribution& how;
  const char* where;  // the caller, for reports
  bool implicit = false;
  std::size_t next = 0;  // the step to take
  Tensor local;

  /// Takes the next step and completes it.
  void take();
  /// Takes all remaining steps.
  void take_all();
  bool ended() const { return next == how.steps.size(); }
  /// Whether the next step communicates.
  bool communicates_next() const { return how.steps[next].communicates; }
  /// Issues the next step, which communicates; pass the result to settle().
  ops::PendingTensor issue() const;
  void settle(ops::PendingTensor& pending);
};

/// Sends this rank's boxes to the ranks of the group that need them in layout `to`, and receives
/// its own.
Tensor exchange(const Tensor& local, const Spec& from, const Spec& to, ops::GroupArgument group);
ops::PendingTensor exchange_async(const Tensor& local, const Spec& from, const Spec& to,
                                  ops::GroupArgument group);

/// The part of `local` that is the box (in global indices).
Tensor box_of(const Tensor& local, const LocalPart& part, const LocalPart& box);

/// Between two meshes, neither layout with a Partial. `local` is undefined on ranks outside of
/// from's mesh, the result outside of to's.
Tensor move_between(const Tensor& local, const Spec& from, const Spec& to, const char* where);

}  // namespace tessera
