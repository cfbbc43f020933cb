// One FSDP group: parameters of the modules of one unit, that no inner unit has taken, in one
// gather.
#pragma once

// Included after the imports of tessera's modules.

namespace fsdp {

class Group;

/// What all groups of one style have in common, and a program may change while it runs.
struct GroupSettings {
  /// Copies of shards that are kept elsewhere, which were gathered last. Peers may still read them;
  /// held until the next ones are gathered, what a step needs is the same in every run.
  std::shared_ptr<std::vector<tessera::Tensor>> copies =
      std::make_shared<std::vector<tessera::Tensor>>();
  /// Along which parameters are sharded: the data is split along the first one first.
  std::vector<int> axes = {};
  /// The type of the reduced gradients of 16-bit ones.
  tessera::DType reduce_dtype = tessera::DType::f32;
  /// The number of neighbouring ranks that keep whole values after forward together; 0: none.
  std::int64_t reshard_ranks = 0;
  /// Whether a parameter without a gradient, beside others that have one, has the gradient 0.
  bool missing_is_zero = false;
  bool reshard_after_backward = true;
  double gradient_factor = 1;
  tessera::parallel::ReductionHook reduction_hook = nullptr;
};

/// A reduction of a group's gradients that was issued: it moves while backward goes on, and is
/// finished before the next one is issued.
struct Reduction {
  Group* group = nullptr;                    // null: there is none
  bool complete = true;                      // the step's gradients are, with it
  std::int64_t bytes = 0;                    // that this rank receives
  std::vector<tessera::Tensor> wholes = {};  // what is reduced
  /// What the reduction before has reduced. Peers may read it until they issue this one; so it is
  /// held until this one ends, on every rank, and what a step needs is the same in every run.
  std::vector<tessera::Tensor> before = {};
  /// This rank's shards as they were reduced, and the parameters to whose gradients they are added.
  struct Part {
    tessera::nn::ParameterPointer parameter;
    int dim = 0;
    tessera::Tensor reduced = {};
    tessera::SpecHandle spec = {};  // of the gradient
  };
  std::vector<Part> parts = {};
};

/// Parameters that are gathered, freed and reduced together: of one type, and computed with in one
/// type. Between uses each is a shard in one flat buffer that peers
/// can read. Where forward computes in another type, or a parameter is not sharded along dim 0,
/// they read a copy in that type with the sharded dim outermost instead, which is made again when
/// the shard was written; of a parameter with an extension, what the extension makes of the shard.
/// The gathered values are in another storage, whose memory is released and restored while its
/// identity stays; their sharded dim is outermost too.
///
/// A write to a shard is detected by the version of its storage. The next forward gathers again;
/// what autograd saved of the values before is then an error in backward, as on one device.
///
/// All communication is operators on local tensors. On the meta device (a trial of a step before
/// the ranks start) the same calls have shapes only, and nobody communicates.
class Group {
 public:
  Group(std::string name, tessera::DeviceMesh mesh, const GroupSettings& settings)
      : name_(std::move(name)), mesh_(mesh), settings_(settings) {}

  /// Extensions of one group agree in ShardExtension::has_values, or no member has one.
  void add(tessera::nn::ParameterPointer parameter, int dim,
           std::shared_ptr<tessera::parallel::ShardExtension> extension);

  /// Gives the shards memory of the device: of the CPU's, memory that the ranks can read.
  void materialize(tessera::Device device);

  /// Issues the all-gather, unless it is in flight or done. Moves nothing yet.
  void start_unshard();
  /// Completes the all-gather; the parameters compute with their whole values from here on. Whole
  /// values that an earlier forward has left are gathered again if any rank has written its shards
  /// since; this costs one small all-reduce. `again`: for backward, which uses what forward used.
  void unshard(bool again);
  /// Frees the whole values. `between`: backward will gather them again, so this rank keeps its
  /// part of them where GroupSettings::reshard_ranks says so.
  void reshard(bool between = false);
  /// Drops a prefetched gather that nothing has used.
  void drop_prefetch();
  /// Begins to bring shards near that are kept elsewhere (nn::MemoryPlace).
  void fetch() const;

  /// A backward begins.
  void begin_backward() { ended_ = false; }
  /// The backward has no more use for the group: frees the whole values. With `reduce` the
  /// reduction of the whole gradients is issued and replaces `last`, which is finished before;
  /// without it (more backwards of the step follow) the gradients are kept as the parameters',
  /// Partial along the axes. Errors: some members have a gradient, others that require one do not;
  /// the gradient's own graph was requested.
  void end_backward(bool reduce, Reduction& last);
  /// Adds the reduced shards to the shards' gradients.
  static void finish(Reduction& reduction);
  /// The same for the last one; no peer reads what was reduced afterwards.
  static void settle(Reduction& reduction);
  /// The backward threw: its gradients that were not reduced are dropped.
  void abandon_backward() noexcept;
  /// Whether every member has its gradient of this backward, so that no later step of it needs the
  /// whole values. False with frozen members: their uses cannot be seen.
  bool gradients_complete() const;
  bool is_frozen() const;

  /// Waits until no peer reads what these groups, of the same ranks, have given to gather.
  static void wait_readers(const std::vector<const Group*>& groups);

 private:
  /// A tensor that is gathered, with the sharded dim outermost.
  struct Exchanged {
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
    std::vector<Exchanged> exchanged = {};
    std::int64_t slot = 0;       // bytes from the start of the flat buffer of shards
    std::int64_t offset = 0;     // bytes from the start of the storage of whole values
    std::uint64_t gathered = 0;  // version of the shard's storage that was gathered last
    std::uint64_t copied = 0;    // recordings() when the shard was copied last
    /// Shared with the hook of the unsharded leaf, which a graph may keep alive.
    std::shared_ptr<bool> arrived = std::make_shared<bool>(false);
  };

  /// Finds what each member becomes, how large the buffers are, and where it is in them.
  void plan_memory();
  /// Makes the unsharded parameters, whose memory comes with the first gather.
  void prepare();
  /// Makes a member's unsharded leaf of this local tensor; it is frozen when the parameter is.
  void set_unsharded(Member& m, tessera::Tensor local);
  void report(const char* operation, std::int64_t bytes, double seconds) const;
  void finish_gathering();
  /// What is gathered, of all members in their order.
  std::vector<tessera::Tensor> all(tessera::Tensor Exchanged::* which) const;
  bool is_extended() const { return members_[0].extension != nullptr; }
  /// Whether whole values get memory.
  bool has_values() const { return !is_extended() || members_[0].extension->has_values(); }
  /// The memory that a gather fills.
  const tessera::Tensor& gathered_memory() const { return is_extended() ? payloads_ : whole_; }
  tessera::parallel::Gathered described(const Member& m) const;
  /// Whether peers gather a copy instead of the shard itself.
  static bool is_copied(const Member& m);
  /// Whether this rank has written a shard since the last gather was issued.
  bool written() const;
  /// Whether any rank has. One small all-reduce.
  bool written_anywhere();
  /// Writes what peers gather of a member whose shard they do not read.
  void copy_shard(Member& m) const;
  /// Drops what copy_shard() wrote of shards that are kept elsewhere. Peers may still read it.
  void drop_copies();
  /// Errors: the shard is another tensor. Follows a parameter that was frozen, or is no longer.
  void check_shard(Member& m);
  void keep_part();
  void drop_part();

  void reduce_gradients(Reduction& last);
  void issue(const std::vector<const Member*>& trained, std::vector<tessera::Tensor> wholes,
             Reduction& last);
  /// Whether the parameter's gradient is a whole one that was kept for a later reduction.
  bool holds_whole_gradient(const Member& m) const;
  /// Moves the whole gradients of this backward to the parameters, unless a parameter has a sharded
  /// gradient already: then nothing is moved and the result is false.
  bool keep_gradients();
  void check_gradient(const Member& m) const;
  /// The whole gradient of the step so far, taken from the member; undefined when there is none.
  tessera::Tensor take_gradient(Member& m);
  tessera::Tensor zero_gradient(const Member& m) const;
  /// The layout in which the gradient is reduced: Partial along the axes.
  tessera::Layout reducible_layout(const Member& m, const tessera::Tensor& gradient) const;
  /// The layout with this placement along the sharding axes.
  tessera::Layout along_axes(tessera::Layout layout, tessera::Placement placement) const;

  enum class State { sharded, gathering, unsharded };

  std::string name_;
  tessera::DeviceMesh mesh_;
  const GroupSettings& settings_;
  std::vector<Member> members_;
  std::int64_t slot_bytes_ = 0;     // of the flat buffer of shards
  std::int64_t part_bytes_ = 0;     // of all parts that peers gather
  std::int64_t whole_bytes_ = 0;    // of all whole values
  std::int64_t payload_bytes_ = 0;  // of what is gathered instead of them
  std::int64_t kept_bytes_ = 0;
  tessera::ops::GroupArgument ranks_;
  /// The same, for reductions: these and gathers do not wait for each other.
  tessera::ops::GroupArgument reducing_ranks_;
  /// Those that keep whole values between forward and backward; none where nothing is kept.
  tessera::ops::GroupArgument keeping_ranks_;
  /// Compared among the ranks with every gather and reduction: ranks that are in different groups
  /// of one shape must not exchange their parameters.
  std::int64_t identity_ = 0;
  tessera::Device device_;    // where whole values are
  tessera::Tensor whole_;     // the memory of all whole values, in bytes
  tessera::Tensor payloads_;  // of what is gathered instead of them
  bool gathered_before_ = false;
  bool ended_ = false;  // the current backward has no more use for the group
  bool keeps_ = false;  // the values between forward and backward are those of the last gather
  State state_ = State::sharded;
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
