export module tessera.execute:chains;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera::graph {

/// Which element of an operand belongs to an element of a chain, which is rows of `columns`.
enum class Spread : std::uint8_t {
  all,      // each its own
  columns,  // one for each column
  rows,     // one for each row
  one,      // the same for all
  sums      // a result: the sum over all rows of what each one adds to its columns
};

/// Neighbouring calls of a section that compute, element by element or row by row, what one loop
/// over rows can: operators with Op::element, whose values stay in registers, or in the first-level
/// cache where an operator of rows needs them, if nothing else uses them.
struct Chain {
  /// Sums over rows are formed in blocks of so many, as the library's kernels form them.
  static constexpr std::int64_t row_block = 64;

  struct Value;
  struct Input;
  struct Output;
  using ValueIndex = Index<Value>;
  using InputIndex = Index<Input>;
  using OutputIndex = Index<Output>;

  /// One of the chain's values, or one of its inputs; neither: it is absent.
  struct Operand {
    ValueIndex value = {};
    InputIndex input = {};
  };
  struct ChainCall {
    const Instruction* instruction = nullptr;
    PlaceIndex place;
    Element element = {};
    int phase = 0;  // of a row: what an operator of rows reads is there before it begins
    std::vector<ValueIndex> results = {};
    std::vector<Operand> operands = {};
  };
  struct Value {
    DType dtype = DType::f32;  // it is rounded to that
    Spread spread = Spread::all;
    int phase = 0;
  };
  struct Input {
    TensorIndex tensor;
    Spread spread = Spread::all;
    int last_phase = 0;  // that reads it
  };
  struct Output {
    ValueIndex value;
    TensorIndex tensor;
    bool is_made = false;     // by the chain, as an operator's new result
    bool is_written = false;  // by an operator that writes an operand: its version moves on
  };
  std::vector<ChainCall> calls = {};
  Table<ValueIndex, Value> values = {};
  Table<InputIndex, Input> inputs = {};
  Table<OutputIndex, Output> outputs = {};
  std::vector<MemoryIndex> inside = {};  // memories that nothing else uses: they are not needed
  std::int64_t rows = 1;
  std::int64_t columns = 1;

  PlaceIndex first() const { return calls.front().place; }
  PlaceIndex last() const { return calls.back().place; }
  int phases() const { return calls.back().phase + 1; }
  bool has_rows() const;
  bool in_double() const;
  /// Where an output's rows are summed, in bytes; 0: it is not a sum.
  std::int64_t bytes_of_sums(const Output& output) const;
  /// Workspace of all of them, one after the other.
  std::int64_t workspace() const;
};

/// The number of a chain, and a value for each chain.
using ChainIndex = Index<Chain>;
template <class T>
using ByChain = Table<ChainIndex, T>;

/// All chains of at least two calls, in their order. They are computed where their last call is.
/// `rows`: also operators of rows.
std::vector<Chain> chains_of(const Program& program, const Shadow& shadow, bool rows = true);
/// The program's shadow when each chain is one call at its last place: what is inside is not needed
/// (Memory::inside).
Shadow shadow_of(const Program& program, std::span<const Chain> chains);
/// For memories that chains make: the memory of an input, which ends with the chain, in whose place
/// it may be, or none; of all other memories nothing. `shadow`: with these chains.
ByMemory<std::optional<MemoryIndex>> places_in_chains(std::span<const Chain> chains,
                                                      const Shadow& shadow);

/// The numbers that a chain's function takes: the dynamic arguments of its calls in their order.
std::vector<double> numbers_of(const Attributes& arguments);

/// The source of functions, one for each different chain, and the name of each chain's. With "_end"
/// it is the name of the function that completes the sums of a chain that has some.
struct ChainCode {
  std::string source = {};
  std::vector<std::string> names = {};
};
ChainCode code_of(const Program& program, std::span<const Chain> chains);

/// The chains as loops for a device, one for each different chain, and the number of each chain's.
/// Chains without operators of rows.
struct ChainLoops {
  ElementLoops loops = {};
  std::vector<std::size_t> numbers = {};
};
ChainLoops loops_of(const Program& program, std::span<const Chain> chains);

/// Where a piece of a chain's elements is, as kernels::ElementRange has it.
struct ChainRange {
  std::int64_t first_row, last_row;
  std::int64_t first_column, last_column;
  std::int64_t columns;
};
/// A chain's function: inputs, outputs and numbers in their order. Of sums over rows `outputs` has
/// the sums of blocks.
using ChainFunction = void (*)(const ChainRange& range, const void* const* inputs,
                               void* const* outputs, const double* numbers);
/// Completes sums of `blocks` blocks in their order.
using ChainEnd = void (*)(std::int64_t blocks, const void* const* sums, void* const* outputs);

}  // namespace tessera::graph
