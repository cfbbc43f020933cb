// One FSDP group: the parameters of one module that no inner module's group has taken.
#pragma once

// Included after the imports of tessera's modules.

namespace fsdp {

/// Parameters that are gathered, freed and reduced together. Between uses each is a shard in one
/// flat buffer that every rank of the axis can read; the gathered values lie in one other storage
/// that comes and goes.
///
/// A group that is not materialised (a trial of the layouts on the meta device, before the ranks
/// start) goes through the same states with whole values and gradients that have no bytes.
class Group {
 public:
  Group(std::string name, tessera::DeviceMesh mesh, int axis)
      : name_(std::move(name)), mesh_(mesh), axis_(axis) {}

  void add(tessera::nn::ParameterPointer parameter) { members_.push_back({std::move(parameter)}); }
  bool empty() const { return members_.empty(); }
  const std::string& name() const { return name_; }

  /// Gives the shards their memory and makes the (memory-less) unsharded parameters.
  void materialize();

  /// Issues the all-gather, unless it is under way or done. Moves nothing yet.
  void start_unshard();
  /// Completes the all-gather; the parameters compute with their whole values from here on.
  void unshard();
  /// Frees the whole values.
  void reshard();
  bool is_unsharded() const { return state_ == State::unsharded; }

  /// This backward is done with the group: reduces the whole gradients into the shards' gradients
  /// (unless more backwards of the step follow: `reduce` false) and frees the whole values.
  /// `reading` keeps what peers may still read, until the next reduction. Errors: some members have
  /// a gradient and some have not.
  void end_backward(bool reduce, std::vector<tessera::Tensor>& reading);
  /// Whether all members have the gradient of this backward.
  bool gradients_complete() const { return arrived_ == members_.size(); }

  /// Waits until no peer reads the shards any more.
  void wait_sources_free();

 private:
  void report(const char* operation, double seconds) const;
  void finish_gathering();
  struct Member {
    tessera::nn::ParameterPointer parameter;
    const tessera::Spec* whole = nullptr;  // Replicate on the axis
    tessera::Tensor unsharded = {};        // of that spec; a leaf; its memory comes and goes
    std::int64_t chunk = 0;                // elements of a full piece
    std::int64_t total = 0;  // elements of the whole (of this rank's part along other axes)
    std::size_t slot = 0;    // bytes from the start of the flat buffer of shards
    std::size_t offset = 0;  // bytes from the start of the storage of whole values
  };
  /// Finds what each member becomes, how large the buffers are, and where it lies in them.
  void plan_memory();
  /// Makes a member's unsharded leaf of this local tensor.
  void set_unsharded(Member& m, tessera::Tensor local);
  void reduce_gradients(std::vector<tessera::Tensor>& reading);
  bool materialized() const { return communicator_ != nullptr; }

  enum class State { sharded, gathering, unsharded };

  std::string name_;
  tessera::DeviceMesh mesh_;
  int axis_;
  std::vector<Member> members_;
  std::size_t shard_bytes_ = 0;
  std::size_t whole_bytes_ = 0;
  tessera::collective::Communicator* communicator_ = nullptr;
  std::shared_ptr<tessera::collective::SharedBuffer> shards_;
  tessera::Counted<tessera::Storage> whole_;
  tessera::Counted<tessera::Storage> shard_gradients_;
  std::vector<tessera::collective::Segment> gather_;
  tessera::collective::Work gathering_;
  State state_ = State::sharded;
  std::size_t arrived_ = 0;
};

}  // namespace fsdp
