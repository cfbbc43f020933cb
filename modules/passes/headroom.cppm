module tessera.passes:headroom;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :facts;

namespace tessera::graph {

/// The memory that a program has left below its peak, for results that stay longer and are then not
/// made again.
class Headroom {
 public:
  /// The facts outlive it.
  explicit Headroom(ProgramFacts& facts);

  /// Whether the results can stay from their last uses to `place` without a higher peak.
  bool has(const std::vector<TensorIndex>& results, PlaceIndex place) const;
  /// From `place` on, where `spared` would be made, `results` stand for them. Facts::last follows.
  void keep(const std::vector<TensorIndex>& results, const std::vector<TensorIndex>& spared,
            PlaceIndex place);

 private:
  void add(PlaceIndex first, PlaceIndex last, std::int64_t bytes);

  ProgramFacts& facts_;
  ByPlace<std::int64_t> live_;
  std::int64_t peak_;
};

}  // namespace tessera::graph
