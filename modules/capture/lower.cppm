export module tessera.capture:lower;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera {

/// Below distribution, while calls are made on the meta device: one that has no operands, and so
/// nothing that says where it is, gives results without being executed.
class CallsOnMeta final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override;
};

/// The program of the calling rank, below distribution, of a program above it: what the rank would
/// execute, as a Recorder below distribution would have recorded it. Nothing is computed: the
/// instructions run on the meta device, and layouts are propagated. Redistributions that no
/// instruction writes are errors, as they are without an AllowRedistribution scope.
/// Errors that name the instruction and its module: an operator without a placement rule for such
/// layouts, or whose variables no local call has; values that the host has read. Error: the program
/// is below distribution already.
Program lower(const Program& program);

}  // namespace tessera
