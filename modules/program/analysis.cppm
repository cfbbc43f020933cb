export module tessera.program:analysis;

import tessera.base;
import tessera.tensor;
import :index;
import :instructions;

export namespace tessera::graph {

/// Whether an operator works on lists by place: what it writes at a place of its lists follows from
/// what is at the same place of its lists alone. Such lists may be cut and joined.
bool works_by_place(const Op& op);

/// A call's operator and arguments, with what binds them to the step: calls of the same text do the
/// same to the same operands. Without the `identity` of a collective, which ranks only compare.
std::string call_in_words(const Instruction& i);

/// Facts of a program, from what its operators declare. A place counts the instructions of
/// all sections; a memory is what tensors share. It describes the program as it was analysed:
/// changes do not reach it.
class Analysis {
 public:
  /// Errors that name the instruction: the program cannot be executed on the meta device.
  explicit Analysis(const Program& program);
  ~Analysis();
  Analysis(const Analysis&) = delete;
  Analysis& operator=(const Analysis&) = delete;

  int places() const;
  int memories() const;
  /// None: the program does not make the tensor.
  MemoryIndex memory_of(TensorIndex tensor) const;
  /// Whether the memory is an input's or an output's, which the caller sees.
  bool is_shared(MemoryIndex memory) const;
  std::int64_t bytes_of(MemoryIndex memory) const;

  /// Memories that the instruction reads and writes; also what it releases, restores or completes.
  std::span<const MemoryIndex> reads(PlaceIndex place) const;
  std::span<const MemoryIndex> writes(PlaceIndex place) const;
  /// It takes part in communication, or the host reads values: such instructions keep their order.
  bool is_ordered(PlaceIndex place) const;
  /// For an issue of a collective, the place of its wait, and the reverse; else none.
  PlaceIndex partner(PlaceIndex place) const;
  /// Whether two instructions must keep their order, as one writes what the other one uses, or both
  /// are ordered. That one makes a view that the other one uses is not a conflict.
  bool conflict(PlaceIndex place, PlaceIndex other) const;

  /// The most bytes that are needed at once, without those of inputs.
  std::int64_t peak_bytes() const;

  struct State;
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// The places that use each memory: as that of an operand or a result, or because it is in flight.
ByMemory<std::vector<PlaceIndex>> uses_of(const Program& program, const Analysis& known);

}  // namespace tessera::graph
