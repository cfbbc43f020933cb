export module tessera.placement:kind;

import tessera.base;

export namespace tessera {

/// Kinds of placements.
enum class PlacementKind : std::uint8_t { replicate, shard, partial, strided_shard };

/// How a tensor is distributed over ONE mesh axis. Made by Shard, Replicate, Partial; default
/// Replicate.
class Placement {
 public:
  constexpr Placement() = default;

  inline constexpr PlacementKind kind() const { return kind_; }
  inline constexpr bool is_replicate() const { return kind_ == PlacementKind::replicate; }
  inline constexpr bool is_shard() const { return kind_ == PlacementKind::shard; }
  /// Shard of exactly this dim.
  inline constexpr bool is_shard(int of_dim) const { return is_shard() && dim_ == of_dim; }
  inline constexpr bool is_partial() const { return kind_ == PlacementKind::partial; }
  inline constexpr bool is_strided_shard() const { return kind_ == PlacementKind::strided_shard; }
  /// The sharded dim; -1 for Replicate and Partial. Below 0 also while counted from the back.
  inline constexpr int dim() const { return dim_; }
  /// The reduction of a Partial; for the Partial of a norm: sum, of the powers.
  inline constexpr ReduceOp reduce_op() const { return op_; }
  /// The order p of a norm's Partial: the value is (sum |x|^p)^(1/p) over the ranks' values x. 0
  /// for all other placements.
  inline constexpr bool is_norm() const { return is_partial() && argument_ != 1; }
  double norm_order() const;
  /// For a StridedShard: into how many pieces the dim was already split before this axis; else 1.
  inline constexpr int split_factor() const { return is_strided_shard() ? argument_ : 1; }
  /// The whole placement in one number, for hashes and keys.
  inline constexpr std::uint64_t bits() const {
    return static_cast<std::uint64_t>(kind_) | static_cast<std::uint64_t>(op_) << 8 |
           static_cast<std::uint64_t>(static_cast<std::uint16_t>(dim_)) << 16 |
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(argument_)) << 32;
  }
  friend inline constexpr bool operator==(const Placement&, const Placement&) = default;

 private:
  friend constexpr Placement Shard(int);
  friend constexpr Placement Partial(ReduceOp);
  friend constexpr Placement StridedShard(int, int);
  friend Placement NormPartial(double);
  inline constexpr Placement(PlacementKind kind, ReduceOp op, int dim, int argument)
      : kind_(kind), op_(op), dim_(static_cast<std::int16_t>(dim)), argument_(argument) {}

  PlacementKind kind_ = PlacementKind::replicate;
  ReduceOp op_ = ReduceOp::sum;
  std::int16_t dim_ = -1;
  std::int32_t argument_ = 1;  // a StridedShard's split factor, the bits of a norm's order, else 1
};

/// Splits `dim` into chunks of ceil(n / k) elements; trailing shards may be shorter or empty.
inline constexpr Placement Shard(int dim) { return {PlacementKind::shard, ReduceOp::sum, dim, 1}; }
/// Every rank holds the whole tensor.
inline constexpr Placement Replicate() { return {}; }
/// Every rank holds a term; the value is their reduction.
inline constexpr Placement Partial(ReduceOp op = ReduceOp::sum) {
  return {PlacementKind::partial, op, -1, 1};
}
/// Whether a norm of this order has its own Partial: a number above 0 that f32 represents exactly,
/// except 1, whose norm is a sum.
bool has_norm_partial(double order);
/// Every rank holds the norm of order p of its shard; the value is (sum |x|^p)^(1/p). Orders whose
/// norms combine in another way return that placement: 0 (a count) and 1 Partial(sum), infinity
/// Partial(max), -infinity Partial(min).
/// Error (input): another order that has_norm_partial refuses.
Placement NormPartial(double order);
/// A Shard whose dim was already split into `split_factor` pieces by later axes. Only for printing
/// and reading: Layout::make turns it into a Shard and a shard order.
inline constexpr Placement StridedShard(int dim, int split_factor) {
  return {PlacementKind::strided_shard, ReduceOp::sum, dim, split_factor};
}

/// "Shard(0)", "Replicate", "Partial(sum)", "Partial(norm(2))", "StridedShard(0, 2)".
std::string to_string(Placement placement);
/// "[Shard(0), Replicate]".
std::string to_string(std::span<const Placement> placements);

/// Reads to_string's form; "Partial" is Partial(sum), "Replicate()" is Replicate, blanks do not
/// matter. Error (input): anything else; the text says what is allowed.
Placement parse_placement(std::string_view text);
/// Reads "[Shard(0), Replicate]".
std::vector<Placement> parse_placements(std::string_view text);

/// The placement with a dim counted from the back (below 0) counted from the front, of a tensor
/// with `tensor_ndim` dims. Error (input): there is no such dim.
Placement resolved(Placement placement, int tensor_ndim);

}  // namespace tessera
