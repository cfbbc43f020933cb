export module tessera.program:values;

import tessera.base;
import tessera.tensor;
import :analysis;
import :index;
import :instructions;

export namespace tessera::graph {

/// The description of a value.
struct ValueKind;
using ValueIndex = Index<ValueKind>;

/// Indices of descriptions: equal ones for equal bytes.
class ValueNames {
 public:
  ValueIndex of(std::string description);

 private:
  std::map<std::pair<std::uint64_t, std::string>, ValueIndex> names_;  // by hash, then by bytes
};

/// A program executed on descriptions instead of numbers. Equal descriptions (of programs that
/// share ValueNames) are equal bits, whatever the inputs, the step's variables and other ranks'
/// values are: a result is described by the operator, its arguments and the descriptions of the
/// operands; a memory by what was written into it, in order. A call that works by place (see
/// works_by_place) is described as one call for each place, so that lists may be cut and joined. A
/// memory into which all of another one was copied has the other one's description, and what a call
/// reads of a copy is described as what it was copied from (see is_same_of_copy).
struct Values {
  /// Results of each place; none of views and releases.
  ByPlace<ValueIndex> calls = {};
  /// Values that each section leaves in inputs and outputs, by their names.
  std::vector<std::map<std::string, ValueIndex>> left = {};
  /// Collectives and checks of the host, in their order.
  std::vector<ValueIndex> ordered = {};
  std::vector<PlaceIndex> ordered_places = {};
  ByMemory<bool> is_written = {};  // after it was made
  /// Contents of a memory from after `place` on; none while a collective writes it.
  struct Change {
    PlaceIndex place;  // none: before the first one
    ValueIndex contents;
  };
  ByMemory<std::vector<Change>> changes = {};  // in their order

  /// Before the instruction at this place; none: nothing, or what is not complete.
  ValueIndex contents_before(PlaceIndex place, MemoryIndex memory) const;
};
/// `carries`: places, in their order, of instructions that bring all values of their second
/// operand's memory into that of the first one.
Values values_of(const Program& program, const Analysis& known, ValueNames& names,
                 std::span<const PlaceIndex> carries = {});

/// Where a tensor is in its memory: type, shape, strides and place.
std::string view_in_words(const Tensor& x);

}  // namespace tessera::graph
