module tessera.passes:offload_plan;

import tessera.base;
import tessera.program;
import :recompute;

namespace tessera::graph {

/// A value that is copied into other memory after an instruction.
struct Offload {
  MemoryIndex memory;
  PlaceIndex after;
  ValueIndex contents;
};
using OffloadIndex = Index<Offload>;
template <class T>
using ByOffload = Table<OffloadIndex, T>;

/// Values that may be kept in other memory, and those that are.
class Offloads {
 public:
  /// All of it outlives this.
  Offloads(const Program& program, const Analysis& known, const Values& values,
           const std::optional<OffloadRates>& rates);

  /// A copy of what the memory holds before the place, if there is one.
  OffloadIndex find(MemoryIndex memory, PlaceIndex place) const;
  /// Whether the memory's value can be kept in other memory from its use at `after` to its use at
  /// `before`: nothing of it is in flight between them, so the memory is free then.
  bool is_possible(MemoryIndex memory, PlaceIndex after, PlaceIndex before) const;
  OffloadIndex add(MemoryIndex memory, PlaceIndex after);
  double store_seconds(MemoryIndex memory) const;
  double fetch_seconds(MemoryIndex memory) const;
  MemoryIndex memory(OffloadIndex offload) const { return all_[offload].memory; }
  ByOffload<Offload>& all() { return all_; }

 private:
  struct Flight {
    PlaceIndex issued;
    PlaceIndex completed;
  };

  void find_movable(const Program& program);

  const Shadow& shadow_;
  const Values& values_;
  std::optional<OffloadRates> rates_;
  ByMemory<bool> movable_;
  ByMemory<std::vector<Flight>> flights_;
  ByOffload<Offload> all_;
};

}  // namespace tessera::graph
