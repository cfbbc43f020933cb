export module tessera.mesh:device_mesh;

import tessera.base;

namespace tessera::mesh_detail {

/// The data of a mesh. Interned: created once for its content, immutable, kept until the process
/// ends.
struct MeshData {
  std::vector<std::string> names;
  Dims shape;
  Dims strides;                                // of a position in `ranks`
  std::vector<int> ranks;                      // row-major
  bool identity = false;                       // ranks are 0, 1, ..., n-1
  std::vector<std::pair<int, int>> positions;  // (rank, position) by rank, unless identity
  std::vector<std::vector<int>> groups;        // for each axis: all its groups, one after another
  std::uint64_t hash = 0;
  std::uint32_t id = 0;
  // Groups over several axes, made at first use; entries never move or vanish.
  mutable std::mutex several_mutex;
  mutable std::map<std::vector<int>, std::vector<int>> several;
};

}  // namespace tessera::mesh_detail

export namespace tessera {

/// An n-d array of global ranks with named axes. A value of pointer size: two meshes with the same
/// names, shape and ranks are the same object, so equality compares pointers. The data of a mesh
/// lives until the process ends; copies are free.
class DeviceMesh {
 public:
  /// No mesh; only operator bool and == may be used.
  DeviceMesh() = default;

  /// A mesh of `shape` with one name for each axis; `ranks` in row-major order may be any distinct
  /// non-negative ranks (default: 0, 1, ..., product of shape - 1).
  /// Error (input): names and shape differ in length, no axis, an empty or repeated name, a size
  /// below 1, a wrong number of ranks, a rank twice or negative.
  static DeviceMesh make(std::vector<std::string> axis_names, const Dims& shape,
                         std::vector<int> ranks = {});

  /// Reads to_string's form, "mesh(shard=2, tensor=2) of ranks 4 5 6 7". Errors (input): another
  /// form; as make().
  static DeviceMesh parse(std::string_view text);

  inline explicit operator bool() const { return data_ != nullptr; }
  inline int ndim() const { return data_->shape.size(); }
  inline const Dims& shape() const { return data_->shape; }
  inline std::span<const std::string> axis_names() const { return data_->names; }
  inline const std::string& axis_name(int axis) const {
    return data_->names[static_cast<std::size_t>(axis)];
  }
  inline int axis_size(int axis) const { return static_cast<int>(data_->shape[axis]); }
  /// The axis of that name. Error (input): there is none; the text lists those that exist.
  int axis_index(std::string_view name) const;
  /// The axis of that name, or nothing.
  std::optional<int> find_axis(std::string_view name) const;

  /// How many ranks there are.
  inline int size() const { return static_cast<int>(data_->ranks.size()); }
  /// All ranks, row-major.
  inline std::span<const int> ranks() const { return data_->ranks; }
  inline bool contains(int rank) const { return position_of(rank) >= 0; }
  /// The rank at one coordinate for each axis. Error: a wrong count or a coordinate out of range.
  int rank_at(const Dims& coordinates) const;
  /// One coordinate for each axis; nothing when the rank is not of this mesh.
  std::optional<Dims> coordinates_of(int rank) const;
  /// The rank's coordinate on one axis; -1 when the rank is not of this mesh.
  inline int coordinate_of(int rank, int axis) const {
    const int position = position_of(rank);
    return position < 0 ? -1
                        : static_cast<int>(position / data_->strides[axis] % data_->shape[axis]);
  }
  /// The rank's index in ranks(); -1 when the rank is not of this mesh.
  inline int position_of(int rank) const {
    if (data_->identity) [[likely]] {
      return rank >= 0 && rank < size() ? rank : -1;
    }
    return find_position(rank);
  }

  /// The ranks along an axis through `rank`, in the axis' order; allocates nothing, stays valid.
  /// Error: the rank is not of this mesh.
  std::span<const int> group(int axis, int rank) const;
  /// The ranks along several axes through `rank`, row-major in the order in which the axes are
  /// given. Made at the first call for these axes, then looked up; stays valid.
  std::span<const int> group(std::span<const int> axes, int rank) const;

  /// The mesh of the named axes, in that order, through `rank`.
  DeviceMesh slice(std::span<const std::string> names, int rank) const;
  DeviceMesh slice(std::string_view name, int rank) const;
  /// The mesh without the axis `name`, at a coordinate on it. Needs two axes or more.
  DeviceMesh at(std::string_view name, int coordinate) const;
  /// All meshes of the named axes, one for each coordinate of the other axes, row-major in them.
  std::vector<DeviceMesh> sub_meshes(std::span<const std::string> names) const;

  /// The named axes become one axis `new_name`, row-major in the order given, at the place of the
  /// first of them in the mesh.
  DeviceMesh flatten(std::span<const std::string> names, std::string_view new_name) const;
  /// The axis `name` becomes several; their sizes multiply to its size.
  DeviceMesh unflatten(std::string_view name, std::vector<std::string> new_names,
                       const Dims& sizes) const;
  /// Sub-meshes of this mesh that meet in exactly one rank become one mesh with all their axes, in
  /// order: slices "replicate" and "tensor" through a rank give the 2-d mesh of both through it.
  /// Error (input): they do not meet in one rank, or do not span a grid of this mesh.
  DeviceMesh concatenate(std::span<const DeviceMesh> parts) const;
  /// A mesh of these ranks with an axis renamed.
  DeviceMesh rename(std::string_view name, std::string_view new_name) const;

  /// A hash of the content: equal in every process.
  inline std::uint64_t hash() const { return data_->hash; }
  /// Dense, from 0, in order of creation; valid in this process only.
  inline std::uint32_t id() const { return data_->id; }

  friend inline bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.data_ == b.data_;
  }

 private:
  inline explicit DeviceMesh(const mesh_detail::MeshData* data) : data_(data) {}
  int find_position(int rank) const;
  int require_position(int rank, const char* what) const;
  Dims coordinates_at(int position) const;
  std::vector<int> axes_of(std::span<const std::string> names, const char* what) const;
  DeviceMesh through(std::span<const int> axes, int position) const;

  const mesh_detail::MeshData* data_ = nullptr;
};

/// "mesh(shard=2, tensor=2)"; ranks follow when they are not 0, 1, ..., n-1.
std::string to_string(const DeviceMesh& mesh);

}  // namespace tessera

export template <>
struct std::hash<tessera::DeviceMesh> {
  inline std::size_t operator()(const tessera::DeviceMesh& mesh) const {
    return mesh ? static_cast<std::size_t>(mesh.hash()) : 0;
  }
};
