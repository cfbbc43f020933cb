export module tessera.program:shadow;

import tessera.base;
import tessera.tensor;
import :index;
import :instructions;

export namespace tessera::graph {

/// Index of a number or a place in a vector.
inline std::size_t index(int number) { return static_cast<std::size_t>(number); }

/// Memory that tensors of a program share, with the places (instructions, counted through all
/// sections) between which it is needed. What an issued collective reads or writes is needed until
/// something waits for it. Other ranks may read the operands that a collective of several tensors
/// leaves alone although this rank has completed the call: they are needed until it has completed
/// one of the same ranks that was issued afterwards, or waits for the readers. Outputs are needed
/// until the end.
struct Memory {
  std::int64_t bytes = 0;
  int first = 0;
  int last = 0;
  bool is_input = false;
  bool is_output = false;
  /// Ranks reduce it: it is best where they can read it.
  bool for_peers = false;
  /// Other ranks may read it where it is even after the program. Nothing else may take its place.
  bool read_later = false;
  /// It is a MemoryPlace's, and takes nothing of the device's (see ProgramTensor::elsewhere).
  bool elsewhere = false;
  /// Its values stay in the registers of a chain (see chains_of): it is no memory.
  bool inside = false;
};

/// A program's tensors on the meta device, which show what shares memory: exactly, because views
/// that are sometimes copies follow from shapes and strides.
struct Shadow {
  std::vector<Tensor> tensors = {};         // by number
  std::vector<MemoryIndex> memory_of = {};  // by number; none: the program does not make it
  ByMemory<Memory> memories = {};
  /// By place: of what issues a collective, the place of what waits for it, and the reverse; -1.
  std::vector<int> partners = {};
  int places = 0;

  MemoryIndex memory(int number) const { return memory_of[index(number)]; }
};
Shadow shadow_of(const Program& program);
/// Error: the program is above distribution.
void require_lowered(const Program& program);

/// Operands that other ranks may read although this rank has completed the call.
std::vector<int> operands_left_to_readers(const Instruction& instruction);

/// The ranks that a call communicates with; null: none.
const CallGroup* group_of(const Instruction& instruction);
/// Whether a call communicates with no other rank.
bool is_alone(const Instruction& instruction);

}  // namespace tessera::graph
