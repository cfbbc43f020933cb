export module tessera.program:statistics;

import tessera.base;
import tessera.device;
import tessera.tensor;
import :index;
import :instructions;
import :roles;

export namespace tessera::graph {

/// Whether it is a call of an operator that communicates, and not a wait for one.
bool is_collective(const Instruction& i);

/// Collectives of one operator in one phase among one group of ranks.
struct CollectiveCount {
  std::string op = {};
  Phase phase = Phase::none;
  CallGroup group = {};  // without ranks: the operator has no group
  int calls = 0;
  std::int64_t bytes = 0;     // of results, and of operands that are written
  std::int64_t received = 0;  // that this rank receives
};

/// Bytes that this rank receives in a collective, by what it has and what it gets.
std::int64_t received_bytes(const Program& program, const Instruction& collective);

/// Bytes of memory, by MemoryCategory.
using CategoryBytes = std::array<std::int64_t, memory_category_count>;
std::int64_t total_of(const CategoryBytes& bytes);

/// Costs of a program.
struct ProgramStatistics {
  std::map<std::string, int> calls = {};          // by operator
  double flops = 0;                               // of products, as Op::flops counts them
  std::vector<CollectiveCount> collectives = {};  // by operator, phase and group
  CategoryBytes inputs = {};
  /// Bytes of the device's memory that are needed at each instruction. Inputs are always there;
  /// other memory is there from the instruction that makes it to the last one that needs it, but
  /// not between its release and its restoration.
  ByPlace<CategoryBytes> live = {};
  std::int64_t peak = 0;               // the most at one instruction
  PlaceIndex peak_at = PlaceIndex(0);  // the first such instruction
};

/// Errors that name the instruction: an operator refuses its operands.
ProgramStatistics statistics_of(const Program& program);

}  // namespace tessera::graph
