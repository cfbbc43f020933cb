module tessera.graph:chains;

import tessera.base;
import tessera.tensor;
import tessera.record;
import :shadow;

namespace tessera::graph {

/// Which element of an operand belongs to an element of a chain, which is rows of `columns`.
enum class Spread : std::uint8_t {
  all,      // each its own
  columns,  // one for each column
  rows,     // one for each row
  one       // the same for all
};

/// Neighbouring calls of a section that compute, element by element, what one loop can: operators
/// with Op::element, whose values stay in registers where nothing else uses them.
struct Chain {
  struct Operand {
    bool is_value = false;  // of an earlier call; else one of `inputs`
    int index = 0;
  };
  struct ChainCall {
    const Instruction* instruction = nullptr;
    int place = 0;
    std::string element = {};  // see Op::element
    std::vector<Operand> operands = {};
    DType dtype = DType::f32;  // its result's; it is rounded to that
  };
  struct Input {
    int number = 0;  // of the program's tensors
    Spread spread = Spread::all;
  };
  struct Output {
    int value = 0;  // of a call
    int number = 0;
    bool is_made = false;     // by the chain, as an operator's new result
    bool is_written = false;  // by an operator that writes an operand: its version moves on
  };
  std::vector<ChainCall> calls = {};
  std::vector<Input> inputs = {};
  std::vector<Output> outputs = {};
  std::vector<int> inside = {};  // memories that nothing else uses: they are not needed
  std::int64_t rows = 1;
  std::int64_t columns = 1;

  int first() const { return calls.front().place; }
  int last() const { return calls.back().place; }
};

/// All chains of at least two calls, in their order. They are computed where their last call is.
std::vector<Chain> chains_of(const Program& program, const Shadow& shadow);
/// The program's shadow when each chain is one call at its last place: what is inside is not needed
/// (Memory::inside).
Shadow shadow_of(const Program& program, std::span<const Chain> chains);
/// By memory, of what chains make: that of an input, which ends with the chain, in whose place it
/// may be, or -1; of all others, not_of_chain. `shadow`: with these chains.
std::vector<int> places_in_chains(std::span<const Chain> chains, const Shadow& shadow);
inline constexpr int not_of_chain = -2;

/// The numbers that a chain's function takes: the dynamic arguments of its calls in their order.
std::vector<double> numbers_of(const Attributes& arguments);

/// The source of functions, one for each different chain, and the name of each chain's.
struct ChainCode {
  std::string source = {};
  std::vector<std::string> names = {};
};
ChainCode code_of(const Program& program, std::span<const Chain> chains);

/// Where a piece of a chain's elements is, as kernels::ElementRange has it.
struct ChainRange {
  std::int64_t first_row, last_row;
  std::int64_t first_column, last_column;
  std::int64_t columns;
};
/// A chain's function: inputs, outputs and numbers in their order.
using ChainFunction = void (*)(const ChainRange& range, const void* const* inputs,
                               void* const* outputs, const double* numbers);

}  // namespace tessera::graph
