module tessera.passes:offload_plan;

import tessera.base;
import tessera.program;
import :recompute;

namespace tessera::graph {

/// A value that is copied into other memory after an instruction.
struct Offload {
  MemoryIndex memory;
  int after = 0;     // the place of the instruction
  int contents = 0;  // the description of the value
};

/// Values that may be kept in other memory, and those that are.
class Offloads {
 public:
  /// All of it outlives this.
  Offloads(const Program& program, const Analysis& known, const Values& values,
           const std::optional<OffloadRates>& rates);

  /// A copy of what the memory holds before the place; -1: there is none.
  int find(MemoryIndex memory, int place) const;
  /// Whether the memory's value can be kept in other memory from its use at `after` to its use at
  /// `before`: nothing of it is in flight between them, so the memory is free then.
  bool is_possible(MemoryIndex memory, int after, int before) const;
  int add(MemoryIndex memory, int after);
  double store_seconds(MemoryIndex memory) const;
  double fetch_seconds(MemoryIndex memory) const;
  MemoryIndex memory(int offload) const { return all_[index(offload)].memory; }
  std::vector<Offload>& all() { return all_; }

 private:
  struct Flight {
    int issued = 0;
    int completed = 0;
  };

  void find_movable(const Program& program);

  const Shadow& shadow_;
  const Values& values_;
  std::optional<OffloadRates> rates_;
  ByMemory<bool> movable_;
  ByMemory<std::vector<Flight>> flights_;
  std::vector<Offload> all_;
};

}  // namespace tessera::graph
