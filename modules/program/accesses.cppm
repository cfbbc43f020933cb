export module tessera.program:accesses;

import tessera.base;
import tessera.tensor;
import :index;
import :instructions;
import :shadow;

export namespace tessera::graph {

/// A group of ranks of which a program issues collectives.
struct GroupKind;
using GroupIndex = Index<GroupKind>;

/// Effects of an instruction on memories, from what its operator declares. Two instructions may
/// change places where neither writes what the other one uses, and not both are ordered.
struct Access {
  std::vector<MemoryIndex> reads = {};
  std::vector<MemoryIndex> writes = {};  // also what it makes, releases, restores or completes
  /// It takes part in communication, whose order all ranks must agree on, or the host reads values.
  bool ordered = false;
  /// For a collective that is issued: the place of the instruction that waits for it.
  PlaceIndex completed = {};
  /// For a wait for a collective: the place of the instruction that issues it.
  PlaceIndex issued = {};
  /// For an issue of a collective: its group.
  GroupIndex issues_in = {};
  /// For a wait after which peers may still read memory of the program: the group. A later issue of
  /// that group frees the memory, so it does not move before this wait, nor this wait after it.
  GroupIndex leaves_in = {};
};

/// All sections' instructions.
ByPlace<const Instruction*> places_of(const Program& program);
/// Until a collective is complete it uses its operands, so what waits for it uses them.
ByPlace<Access> accesses_of(const Program& program, const Shadow& shadow);
bool conflict(const Access& a, const Access& b);

/// Whether it is a call that only makes results, all of which are used, from its operands: the same
/// ones whenever it is made with the same values.
bool is_pure_call(const Instruction& i, const Access& access);

/// Whether it is a call that copies its operand, and nothing else, into new memory in row-major
/// order.
bool copies_operand(const Instruction& i, const Access& access);
/// Whether it copies all of a memory to all of another one, byte by byte. Only the primitive by
/// which the library copies itself is known to do that.
bool copies_memory(const Instruction& i, const Shadow& shadow);
/// Whether a call computes the same bits of a tensor as of a copy of it that `copies_operand` has
/// made. Others than pointwise operators follow the order of elements in memory, and the products
/// of a library may follow where the first one is.
bool is_same_of_copy(const Instruction& i, const Tensor& original, const Shadow& shadow);

/// "section 'update', instruction 3 (%4: f32[2] = neg(%2))".
std::string place_in_words(const Program& program, PlaceIndex place);

/// Bytes of the device's memory that are needed at each place and at the end, without those of
/// inputs.
ByPlace<std::int64_t> needed_bytes(const Shadow& shadow);
/// The most of them.
std::int64_t peak_bytes(const Shadow& shadow);

}  // namespace tessera::graph
