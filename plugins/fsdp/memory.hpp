// The tensors of an FSDP group: shards, what peers gather of them, and whole values.
#pragma once

// Included after the imports of tessera's modules.

namespace fsdp {

/// What all groups of one style have in common, and a program may change while it runs.
struct Settings {
  tessera::parallel::FullyShardOptions options = {};
  /// Copies of shards that are kept elsewhere, which were gathered last. Peers may still read them;
  /// held until the next ones are gathered, what a step needs is the same in every run.
  std::shared_ptr<std::vector<tessera::Tensor>> copies =
      std::make_shared<std::vector<tessera::Tensor>>();
  /// Along which parameters are sharded: the data is split along the first one first.
  std::vector<int> axes = {};
  /// Called when a parameter's whole gradient of a backward has arrived.
  std::function<void()> gradient_arrived = nullptr;
  double gradient_factor = 1;
  tessera::parallel::ReductionHook reduction_hook = nullptr;
};

/// A tensor that is gathered, with the sharded dim outermost.
struct GatheredTensor {
  tessera::Tensor whole = {};
  tessera::Tensor source = {};  // what peers gather
  tessera::Tensor kept = {};    // this rank's part between forward and backward
};
struct Member {
  tessera::nn::ParameterPointer parameter;
  int dim = 0;  // that is sharded
  std::shared_ptr<tessera::parallel::ShardExtension> extension = nullptr;
  tessera::SpecHandle whole = {};  // Replicate on the axes; in the type of forward
  tessera::Tensor unsharded = {};  // of that spec; a leaf; its memory comes and goes
  tessera::Tensor shard = {};      // the parameter's local part as it was made
  /// The values, or the extension's payloads.
  std::vector<tessera::parallel::Payload> payloads = {};
  std::vector<GatheredTensor> exchanged = {};
  std::int64_t slot = 0;       // bytes from the start of the flat buffer of shards
  std::int64_t offset = 0;     // bytes from the start of the storage of whole values
  std::uint64_t gathered = 0;  // version of the shard's storage that was gathered last
  std::uint64_t copied = 0;    // recordings() when the shard was copied last
  /// Shared with the hook of the unsharded leaf, which a graph may keep alive.
  std::shared_ptr<bool> arrived = std::make_shared<bool>(false);
};

/// The memory of a group's members. The shards are in one flat buffer that peers can read; the
/// whole values in another storage, whose memory is released and restored.
class GroupMemory {
 public:
  GroupMemory(const std::string& name, tessera::DeviceMesh mesh, const Settings& settings);

  /// Extensions of one group agree in ShardExtension::has_values, or no member has one.
  void add(tessera::nn::ParameterPointer parameter, int dim,
           std::shared_ptr<tessera::parallel::ShardExtension> extension);
  /// Gives the shards memory of the device: of the CPU's, memory that the ranks can read. Makes the
  /// unsharded parameters, whose memory comes with the first gather.
  void materialize(tessera::Device device);
  /// The same for shards that have memory.
  void adopt_shards();
  bool is_made() const { return whole_.defined(); }

  std::vector<Member>& members() { return members_; }
  const std::vector<Member>& members() const { return members_; }
  /// What is gathered, of all members in their order.
  std::vector<tessera::Tensor> all(tessera::Tensor GatheredTensor::* which) const;
  bool is_extended() const { return members_[0].extension != nullptr; }
  /// Whether whole values get memory.
  bool has_values() const { return !is_extended() || members_[0].extension->has_values(); }
  /// All whole values, in bytes.
  const tessera::Tensor& whole() const { return whole_; }
  /// The memory that a gather fills.
  const tessera::Tensor& gathered() const { return is_extended() ? payloads_ : whole_; }
  void release();
  void restore();

  tessera::parallel::GatheredParameter described(const Member& m) const;
  /// Makes a member's unsharded leaf of this local tensor; it is frozen when the parameter is.
  void set_unsharded(Member& m, tessera::Tensor local) const;
  /// Whether peers gather a copy instead of the shard itself.
  static bool is_copied(const Member& m);
  /// Writes what peers gather of a member whose shard they do not read.
  void copy_shard(Member& m) const;
  /// Drops what copy_shard() wrote of shards that are kept elsewhere. Peers may still read it.
  void drop_copies();
  /// Begins to bring shards near that are kept elsewhere (MemoryPlace).
  void fetch() const;

  /// Keeps this rank's part of the whole values, for the next gather.
  void keep_part();
  void drop_part();
  /// Whether the next gather is of the parts that are kept.
  bool keeps() const { return keeps_; }
  bool can_keep() const { return keeping_ranks_.group != nullptr; }
  /// The ranks of the next gather, and the bytes that this rank receives in it.
  const tessera::ops::GroupArgument& gathering_ranks() const {
    return keeps_ ? keeping_ranks_ : ranks_;
  }
  std::int64_t received_bytes() const {
    return gathered_bytes_ - (keeps_ ? kept_bytes_ : part_bytes_);
  }
  const tessera::ops::GroupArgument& ranks() const { return ranks_; }
  /// The same ranks for reductions: these and gathers do not wait for each other.
  const tessera::ops::GroupArgument& reducing_ranks() const { return reducing_ranks_; }
  /// Compared among the ranks with every gather and reduction: ranks that are in different groups
  /// of one shape must not exchange their parameters.
  std::int64_t identity() const { return identity_; }
  /// The layout with this placement along the sharding axes.
  tessera::Layout along_axes(tessera::Layout layout, tessera::Placement placement) const;

 private:
  /// Finds what each member becomes, how large the buffers are, and where it is in them.
  void plan();
  void prepare();

  tessera::DeviceMesh mesh_;
  const Settings& settings_;
  std::vector<Member> members_;
  std::int64_t slot_bytes_ = 0;      // of the flat buffer of shards
  std::int64_t gathered_bytes_ = 0;  // of what a gather makes
  std::int64_t part_bytes_ = 0;      // of this rank's part of it
  std::int64_t whole_bytes_ = 0;     // of all whole values
  std::int64_t payload_bytes_ = 0;   // of what is gathered instead of them
  std::int64_t kept_bytes_ = 0;      // of its part of it while whole values are kept
  tessera::ops::GroupArgument ranks_;
  tessera::ops::GroupArgument reducing_ranks_;
  /// Those that keep whole values between forward and backward; none where nothing is kept.
  tessera::ops::GroupArgument keeping_ranks_;
  std::int64_t identity_ = 0;
  tessera::Device device_;    // where whole values are
  tessera::Tensor whole_;     // the memory of all whole values, in bytes
  tessera::Tensor payloads_;  // of what is gathered instead of them
  bool keeps_ = false;  // the values between forward and backward are those of the last gather
};

tessera::DType stored_type(const tessera::nn::Parameter& parameter);
tessera::DType computed_type(const tessera::nn::Parameter& parameter);
/// One of `parts` parts of a whole with the sharded dim outermost.
tessera::Dims part_shape(tessera::Dims whole, int parts, int part);
/// The tensor with this dim outermost, and back: views.
tessera::Tensor outermost(const tessera::Tensor& x, int dim);
tessera::Dims outermost(tessera::Dims shape, int dim);
tessera::Tensor from_outermost(const tessera::Tensor& x, int dim);

}  // namespace fsdp
