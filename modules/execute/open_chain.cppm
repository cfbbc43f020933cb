module tessera.execute:open_chain;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :chains;

namespace tessera::graph {

/// A chain of at most so many elements is computed later, after whatever is between its calls; any
/// chain after instructions that write at most so many bytes.
inline constexpr std::int64_t small_count = 4096;

/// Two operands of one chain: both are computed in double, or neither.
inline bool compute_alike(DType a, DType b) { return (a == DType::f64) == (b == DType::f64); }

/// The tensors that a call writes or makes.
inline std::vector<TensorIndex> results_of(const Instruction& i) {
  return i.op->in_place ? std::vector<TensorIndex>{i.in[0]} : i.out;
}

/// Where a tensor is.
struct TensorAddress {
  MemoryIndex memory;
  std::int64_t first_byte = 0;
  DType dtype = DType::f32;
  friend std::strong_ordering operator<=>(const TensorAddress&, const TensorAddress&) = default;
};

/// A chain that may go on.
class OpenChain {
 public:
  explicit OpenChain(const Shadow& shadow) : shadow_(shadow) {}

  bool is_small() const { return count_ <= small_count; }
  /// Whether an operand is computed by the chain.
  bool leads_to(const Instruction& i) const;

  /// Whether one of the two must stay before the other.
  bool conflicts(const Access& access) const;

  /// False: the call does not fit what is there.
  bool add(const Instruction& i, PlaceIndex place, const Element& element);

  /// The chain, if it is one.
  std::optional<Chain> closed();

 private:
  struct Value {
    Chain::ValueIndex value = {};
    TensorIndex tensor;
    bool is_made = false;
    bool is_written = false;
  };

  MemoryIndex memory(TensorIndex number) const { return shadow_.memory(number); }
  bool is_made(MemoryIndex memory) const;
  TensorAddress where(TensorIndex number) const {
    const Tensor& x = shadow_.at(number);
    return {memory(number), x.offset() * static_cast<std::int64_t>(size_of(x.dtype())), x.dtype()};
  }
  bool is_whole(Spread spread) const {
    return spread == Spread::all || (spread == Spread::one && count_ == 1);
  }
  /// Whether a value is at each element of an operand that is spread so.
  bool is_value_at(TensorIndex number, Spread spread) const;

  /// An operator of rows has a phase of its own.
  int next_phase(bool of_rows) const;

  /// Whether writing the tensor changes no other elements that the chain has read or written.
  bool may_write(TensorIndex number) const;

  Chain::Operand operand(TensorIndex number, Spread spread, int phase);

  const Shadow& shadow_;
  Chain chain_;
  std::int64_t columns_ = 0;  // 0: any
  std::int64_t count_ = 0;
  std::map<TensorAddress, Value> values_;  // what was computed last
  std::map<std::pair<TensorAddress, Spread>, Chain::InputIndex> read_;
  std::vector<MemoryIndex> made_;  // memories that are written
};

}  // namespace tessera::graph
