export module tessera.program:shadow;

import tessera.base;
import tessera.tensor;
import :index;
import :instructions;

export namespace tessera::graph {

/// Memory that tensors of a program share, with the places (instructions, counted through all
/// sections) between which it is needed. What an issued collective reads or writes is needed until
/// something waits for it. Other ranks may read the operands that a collective of several tensors
/// leaves alone although this rank has completed the call: they are needed until it has completed
/// one of the same ranks that was issued afterwards, or waits for the readers. Outputs are needed
/// until the end.
struct Memory {
  std::int64_t bytes = 0;
  PlaceIndex first;
  PlaceIndex last;
  bool is_input = false;
  bool is_output = false;
  /// Ranks reduce it: it is best where they can read it.
  bool for_peers = false;
  /// Other ranks may read it where it is even after the program. Nothing else may take its place.
  bool read_later = false;
  /// It is a MemoryPlace's, and takes nothing of the device's (see ProgramTensor::elsewhere).
  bool elsewhere = false;
  /// Its values stay in the registers of a chain (see chains_of): it has no memory.
  bool inside = false;
};

/// A program's tensors on the meta device, which show what shares memory: exactly, because views
/// that are sometimes copies follow from shapes and strides.
struct Shadow {
  ByTensor<Tensor> tensors = {};
  ByTensor<MemoryIndex> memory_of = {};
  ByMemory<Memory> memories = {};
  /// Of what issues a collective, the place of what waits for it, and the reverse; else none.
  ByPlace<PlaceIndex> partners = {};

  const Tensor& at(TensorIndex tensor) const { return tensors[tensor]; }
  /// Operands or results of an instruction; absent ones are undefined.
  std::vector<Tensor> at(std::span<const TensorIndex> some) const;
  /// None: the tensor is absent, or the program does not make it.
  MemoryIndex memory(TensorIndex tensor) const {
    return tensor.exists() ? memory_of[tensor] : MemoryIndex();
  }
  /// Whether it is all of its memory, in row-major order.
  bool is_all_of_memory(TensorIndex tensor) const;
  PlaceIndex end() const { return partners.next(); }
};
Shadow shadow_of(const Program& program);
/// Whether no operand of a call is there. Then nothing says that it is on the meta device, and the
/// operator would be executed: it might communicate.
bool has_no_operands(std::span<const Tensor> operands);
/// Results of such a call on the meta device. Nothing is executed.
Tensors results_without_operands(const Call& call);
/// Error: the program is above distribution.
void require_lowered(const Program& program);

/// Operands that other ranks may read although this rank has completed the call.
std::vector<TensorIndex> operands_left_to_readers(const Instruction& instruction);

/// The ranks that a call communicates with; null: none.
const CallGroup* group_of(const Instruction& instruction);
/// Whether a call communicates with no other rank.
bool is_alone(const Instruction& instruction);

}  // namespace tessera::graph
