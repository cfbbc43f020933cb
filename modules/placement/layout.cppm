export module tessera.placement:layout;

import tessera.base;
import tessera.mesh;
import :kind;

namespace tessera::layout_detail {

/// The data of a layout in canonical form. Interned, immutable, kept until the process ends.
struct LayoutData {
  DeviceMesh mesh;
  std::array<Placement, max_dims> placements;     // of each mesh axis; never a StridedShard
  std::array<std::int8_t, max_dims> order{};      // sharding axes: by dim, then first applied first
  std::array<std::int8_t, max_dims + 1> begin{};  // dim d's axes are order[begin[d] .. begin[d+1])
  std::int8_t top_dim = -1;                       // the largest sharded dim
  bool partial = false;
  bool replicated = false;
  bool default_order = true;
  std::uint64_t hash = 0;
  std::uint32_t id = 0;
};

/// The axes in order of application that placements with StridedShards stand for.
/// Error (input): no order explains a split factor.
std::vector<int> order_of_strided(const DeviceMesh& mesh, std::span<const Placement> placements);

/// The axes of one dim in canonical order: an axis of one rank splits nothing, so its position has
/// no meaning; each is placed before the first larger axis.
std::vector<int> canonical_order(const DeviceMesh& mesh, std::span<const int> axes);

}  // namespace tessera::layout_detail

export namespace tessera {

/// How a tensor is distributed over a mesh: a placement for each axis and, where several axes shard
/// one tensor dim, the order in which they shard it (first applied = outermost). A value of pointer
/// size; equal layouts are the same object, so equality compares pointers. Lives until the process
/// ends.
class Layout {
 public:
  /// No layout; only operator bool and == may be used.
  Layout() = default;

  /// `order`: the axes in order of application; every sharding axis is in it, others do not
  /// matter; empty = by increasing axis. StridedShards are turned into Shards and a shard order
  /// (then `order` must be empty).
  /// Error (input): not one placement for each axis, a dim below 0 (see resolved) or above 7, an
  /// order that misses or repeats an axis, a split factor that no order explains.
  static Layout make(const DeviceMesh& mesh, std::span<const Placement> placements,
                     std::span<const int> order = {});
  static Layout make(const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                     std::initializer_list<int> order = {});
  /// Makes a layout on the mesh of the innermost MeshScope of this thread. Error: there is none.
  static Layout make(std::initializer_list<Placement> placements);
  /// Replicate on every axis.
  static Layout replicated(const DeviceMesh& mesh);
  /// Reads to_string's form, "[StridedShard(0, 2), Shard(0)]".
  static Layout parse(const DeviceMesh& mesh, std::string_view text);

  inline explicit operator bool() const { return data_ != nullptr; }
  inline const DeviceMesh& mesh() const { return data_->mesh; }
  /// Mesh axes, not tensor dims.
  inline int ndim() const { return data_->mesh.ndim(); }
  inline Placement placement(int axis) const {
    return data_->placements[static_cast<std::size_t>(axis)];
  }
  inline std::span<const Placement> placements() const {
    return {data_->placements.data(), static_cast<std::size_t>(ndim())};
  }
  /// The axes that shard a tensor dim, in order of application; empty when none does.
  inline std::span<const std::int8_t> axes_sharding(int dim) const {
    const auto d = static_cast<std::size_t>(dim);
    return {data_->order.data() + data_->begin[d], data_->order.data() + data_->begin[d + 1]};
  }
  inline bool shards(int dim) const { return !axes_sharding(dim).empty(); }
  /// The number of pieces into which a tensor dim is split: the product of its axes' sizes.
  int shard_count(int dim) const;
  /// Replicate on every axis.
  inline bool is_replicated() const { return data_->replicated; }
  inline bool has_partial() const { return data_->partial; }
  inline bool has_shard() const { return data_->top_dim >= 0; }
  /// The largest sharded tensor dim, -1 for none: the tensor needs more dims than this.
  inline int top_dim() const { return data_->top_dim; }
  /// Whether every dim is sharded by increasing axis.
  inline bool has_default_order() const { return data_->default_order; }
  /// Whether no axis of more than one rank shards the axis' tensor dim after it, so that its shards
  /// can be gathered or exchanged alone.
  bool is_innermost(int axis) const;

  /// This layout with another placement on one axis. A shard of a dim that the axis did not shard
  /// is applied last (innermost); the other axes keep their order.
  Layout with_placement(int axis, Placement placement) const;

  /// The form that PyTorch prints: a Shard applied after later axes is StridedShard(dim, factor).
  std::vector<Placement> strided_placements() const;

  /// Hash of the content: equal in every process.
  inline std::uint64_t hash() const { return data_->hash; }
  /// Dense, from 0, in order of making; of this process only.
  inline std::uint32_t id() const { return data_->id; }

  friend inline bool operator==(const Layout& a, const Layout& b) { return a.data_ == b.data_; }

 private:
  inline explicit Layout(const layout_detail::LayoutData* data) : data_(data) {}
  const layout_detail::LayoutData* data_ = nullptr;
};

/// "[StridedShard(0, 2), Shard(0)]".
std::string to_string(const Layout& layout);

/// Error (input) that begins with `what` when the layout shards a dim that a tensor of
/// `tensor_ndim` dims does not have.
void check_layout_fits(const Layout& layout, int tensor_ndim, std::string_view what);

}  // namespace tessera

export template <>
struct std::hash<tessera::Layout> {
  inline std::size_t operator()(const tessera::Layout& layout) const {
    return layout ? static_cast<std::size_t>(layout.hash()) : 0;
  }
};
