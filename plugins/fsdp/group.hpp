// One FSDP group: parameters of the modules of one unit, that no inner unit has taken, in one
// gather.
#pragma once

// Included after the imports of tessera's modules.
#include "memory.hpp"

namespace fsdp {

class Group;

/// A reduction of a group's gradients that was issued: it moves while backward goes on, and is
/// finished before the next one is issued.
struct Reduction {
  Group* group = nullptr;  // null: there is none
  bool complete = true;    // the step's gradients are, with it
  std::int64_t bytes = 0;  // that this rank receives
  /// Whole gradients, and this rank's shards of each of their sums (parallel::terms_of_sums).
  std::vector<tessera::GradientBucket> buckets = {};
  /// What the reduction before has reduced. Peers may read it until they issue this one; so it is
  /// held until this one ends, on every rank, and what a step needs is the same in every run.
  std::vector<tessera::Tensor> before = {};
  /// Of a bucket's shards, in order: the parameters to whose gradients they are added.
  struct Part {
    tessera::nn::ParameterPointer parameter;
    int dim = 0;
    tessera::SpecHandle spec = {};  // of the gradient
  };
  std::vector<Part> parts = {};
};

/// Parameters that are gathered, freed and reduced together. They have one type, and forward
/// computes with them in one type.
///
/// Shards lie in one flat buffer that peers read. They read a copy instead, with the sharded dim
/// outermost, where that is not dim 0, where forward has another type, and where an extension
/// makes something else of the shard; the copy is made again after a write to the shard.
///
/// Gathered values have a storage of their own, whose memory comes and goes while its identity
/// stays. A write to a shard (seen by its storage's version) makes the next forward gather again;
/// a backward that needs the values before is an error, as on one device.
///
/// All communication is operators on local tensors; on the meta device they have shapes only.
class Group {
 public:
  /// `of_one_stage`: the rank has several stages, and other stages' backwards leave the group
  /// alone.
  Group(std::string name, tessera::DeviceMesh mesh, const Settings& settings,
        bool of_one_stage = false)
      : name_(std::move(name)),
        mesh_(mesh),
        settings_(settings),
        of_one_stage_(of_one_stage),
        memory_(name_, mesh, settings) {}

  /// See GroupMemory::add and GroupMemory::materialize.
  void add(tessera::nn::ParameterPointer parameter, int dim,
           std::shared_ptr<tessera::parallel::ShardExtension> extension) {
    memory_.add(std::move(parameter), dim, std::move(extension));
  }
  void materialize(tessera::Device device);

  /// Issues the all-gather, unless it is in flight or done. Moves nothing yet.
  void start_unshard();
  /// Completes the all-gather; the parameters compute with their whole values from here on. Whole
  /// values that an earlier forward has left are gathered again if any rank has written its shards
  /// since; this costs one small all-reduce. `again`: for backward, which uses what forward used.
  void unshard(bool again);
  /// Frees the whole values. `between`: backward will gather them again, so this rank keeps its
  /// part of them where the option reshard_ranks says so.
  void reshard(bool between = false);
  /// Drops a prefetched gather that nothing has used.
  void drop_prefetch();
  /// Begins to bring shards near that are kept elsewhere (MemoryPlace).
  void fetch() const;

  /// A backward begins.
  void begin_backward() { ended_ = false; }
  /// The gradients of a backward have arrived. With `reduce` the reduction of the whole gradients
  /// is issued and replaces `last`, which is finished before; without it (more backwards of the
  /// step follow) the gradients are kept as the parameters', Partial along the axes. Errors: some
  /// members have a gradient, others that require one do not; the gradient's own graph was
  /// requested.
  void end_gradients(bool reduce, Reduction& last);
  /// The backward has no more use for the group's whole values: frees them.
  void end_use();
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
  void report(const char* operation, std::int64_t bytes, double seconds) const;
  void finish_gathering();
  /// Whether this rank has written a shard since the last gather was issued.
  bool written() const;
  /// Whether any rank has. One small all-reduce.
  bool written_anywhere();
  /// Errors: the shard is another tensor. Follows a parameter that was frozen, or is no longer.
  void check_shard(Member& m) const;

  /// The same for the shards of one of its buckets.
  static void finish_shards(const Reduction& ended, std::vector<tessera::Tensor> shards, bool last);
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

  enum class State { sharded, gathering, unsharded };

  std::string name_;
  tessera::DeviceMesh mesh_;
  const Settings& settings_;
  bool of_one_stage_;
  GroupMemory memory_;
  bool gathered_before_ = false;
  bool ended_ = false;              // the current backward has no more use for the group
  std::uint64_t unsharded_in_ = 0;  // the StepContext::order of its last use
  State state_ = State::sharded;
};

}  // namespace fsdp
