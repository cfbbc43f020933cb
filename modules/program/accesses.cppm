export module tessera.program:accesses;

import tessera.base;
import tessera.tensor;
import :index;
import :instructions;
import :shadow;

export namespace tessera::graph {

/// Effects of an instruction on memories, from what its operator declares. Two instructions may
/// change places where neither writes what the other one uses, and not both are ordered.
struct Access {
  std::vector<MemoryIndex> reads = {};
  std::vector<MemoryIndex> writes = {};  // also what it makes, releases, restores or completes
  /// It takes part in communication, whose order all ranks must agree on, or the host reads values.
  bool ordered = false;
  /// For a collective that is issued: the place of the instruction that waits for it, or -1.
  int completed = -1;
  /// For a wait for a collective: the place of the instruction that issues it, or -1.
  int issued = -1;
  /// For an issue of a collective: its group, counted; and for a wait for one that leaves memory
  /// of the program to readers. That memory is free where a later issue of the group is complete,
  /// so one does not pass the other. Else -1.
  int issues_in = -1;
  int leaves_in = -1;
};

/// All sections' instructions, by place.
std::vector<const Instruction*> places_of(const Program& program);
/// By place. Until a collective is complete it uses its operands, so what waits for it uses them.
std::vector<Access> accesses_of(const Program& program, const Shadow& shadow);
bool conflict(const Access& a, const Access& b);

/// Whether it is a call that only makes results, all of which are used, from its operands: the same
/// ones whenever it is made with the same values.
bool is_pure_call(const Instruction& i, const Access& access);

/// Whether it is a call that copies its operand, and nothing else, into new memory in row-major
/// order.
bool copies_operand(const Instruction& i, const Access& access);
/// Whether a call computes the same bits of a tensor as of a copy of it that `copies_operand` has
/// made. Others than pointwise operators follow the order of elements in memory, and the products
/// of a library may follow where the first one is.
bool is_same_of_copy(const Instruction& i, const Tensor& original, const Shadow& shadow);

/// "section 'update', instruction 3 (%4: f32[2] = neg(%2))".
std::string place_in_words(const Program& program, int place);

/// The most bytes of the device's memory that are needed at once, without those of inputs.
std::int64_t peak_bytes(const Shadow& shadow);

}  // namespace tessera::graph
