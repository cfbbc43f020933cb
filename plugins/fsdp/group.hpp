// One FSDP group: the parameters of one data type of one module that no inner module's group has
// taken.
#pragma once

// Included after the imports of tessera's modules.

namespace fsdp {

class Group;

/// A reduction of a group's gradients that was issued: it moves while backward goes on, and is
/// finished before the next one is issued.
struct Reduction {
  Group* group = nullptr;                    // null: there is none
  bool complete = true;                      // the step's gradients are, with it
  std::vector<tessera::Tensor> wholes = {};  // what is reduced
  /// What the reduction before has reduced. Peers may read it until they issue this one; so it is
  /// held until this one ends, on every rank, and what a step needs is the same in every run.
  std::vector<tessera::Tensor> before = {};
  /// This rank's shards, and whose gradients they become.
  std::vector<std::pair<tessera::nn::ParameterPointer, tessera::Tensor>> shards = {};
};

/// Parameters that are gathered, freed and reduced together. Between uses each is a shard in one
/// flat buffer that every rank of the axis can read. The gathered values are in another storage,
/// whose memory is released and restored while its identity stays.
///
/// A write to a shard is detected by the version of its storage. The next forward gathers again;
/// what autograd saved of the values before is then an error in backward, as on one device.
///
/// All communication is operators on local tensors. On the meta device (a trial of a step before
/// the ranks start) the same calls have shapes only, and nobody communicates.
class Group {
 public:
  Group(std::string name, tessera::DeviceMesh mesh, int axis)
      : name_(std::move(name)), mesh_(mesh), axis_(axis) {}

  void add(tessera::nn::ParameterPointer parameter) { members_.push_back({std::move(parameter)}); }

  /// Gives the shards memory of the device: of the CPU's, memory that the axis' ranks can read.
  void materialize(tessera::Device device);

  /// Issues the all-gather, unless it is in flight or done. Moves nothing yet.
  void start_unshard();
  /// Completes the all-gather; the parameters compute with their whole values from here on. Whole
  /// values that an earlier forward has left are gathered again if any rank has written its shards
  /// since; this costs one small all-reduce. `again`: for backward, which uses what forward used.
  void unshard(bool again);
  /// Frees the whole values.
  void reshard();
  /// Drops a prefetched gather that nothing has used.
  void drop_prefetch();

  /// The backward has no more use for the group: frees the whole values. With `reduce` the
  /// reduction of the whole gradients is issued and replaces `last`, which is finished before;
  /// without it (more backwards of the step follow) the gradients are kept as the parameters',
  /// Partial along the axis. Errors: some members have a gradient, others that require one do not;
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

  /// Waits until no peer reads the shards of these groups, of one axis, any more.
  static void wait_readers(const std::vector<const Group*>& groups);

 private:
  struct Member {
    tessera::nn::ParameterPointer parameter;
    tessera::SpecHandle whole = {};  // Replicate on the axis
    tessera::Tensor unsharded = {};  // of that spec; a leaf; its memory comes and goes
    tessera::Tensor shard = {};      // the parameter's local part as it was made
    std::int64_t slot = 0;           // elements from the start of the flat buffer of shards
    std::int64_t offset = 0;         // elements from the start of the storage of whole values
    std::uint64_t gathered = 0;      // version of the shard's storage that was gathered last
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
  std::int64_t gathered_bytes() const;
  void finish_gathering();
  /// The members' tensors, in their order.
  std::vector<tessera::Tensor> shards() const;
  std::vector<tessera::Tensor> wholes() const;
  /// Whether this rank has written a shard since the last gather was issued.
  bool written() const;
  /// Whether any rank has. One small all-reduce.
  bool written_anywhere();

  void reduce_gradients(Reduction& last);
  /// Whether the parameter's gradient is a whole one that was kept for a later reduction.
  bool holds_whole_gradient(const Member& m) const;
  /// Moves the whole gradients of this backward to the parameters, unless a parameter has a sharded
  /// gradient already: then nothing is moved and the result is false.
  bool keep_gradients();
  void check_gradient(const Member& m) const;
  /// The whole gradient of the step so far, taken from the member; undefined when there is none.
  tessera::Tensor take_gradient(Member& m);
  /// The layout in which the gradient is reduced: Partial along the axis.
  tessera::Layout reducible_layout(const Member& m, const tessera::Tensor& gradient) const;

  enum class State { sharded, gathering, unsharded };

  std::string name_;
  tessera::DeviceMesh mesh_;
  int axis_;
  std::vector<Member> members_;
  std::int64_t shard_elements_ = 0;
  std::int64_t whole_elements_ = 0;
  tessera::ops::GroupArgument ranks_;
  /// The same, for reductions: these and gathers do not wait for each other.
  tessera::ops::GroupArgument reducing_ranks_;
  /// Compared among the ranks with every gather and reduction: ranks that are in different groups
  /// of one shape must not exchange their parameters.
  std::int64_t identity_ = 0;
  tessera::Tensor whole_;  // the memory of all whole values
  bool gathered_before_ = false;
  State state_ = State::sharded;
};

}  // namespace fsdp
