export module tessera.ops:collective;

import tessera.base;
import tessera.tensor;
import tessera.collective;

export namespace tessera::ops {

/// A group of ranks as an operator's argument; its text has the ranks and the communicator's name.
struct GroupArgument {
  collective::Communicator* group = nullptr;

  collective::Communicator& operator*() const { return *group; }
  collective::Communicator* operator->() const { return group; }
};

}  // namespace tessera::ops

export namespace tessera {

template <>
struct ArgumentType<ops::GroupArgument> {
  static constexpr std::string_view name = "group";
  static inline std::int64_t word(ops::GroupArgument v) {
    return reinterpret_cast<std::int64_t>(v.group);
  }
  static inline ops::GroupArgument from_word(std::int64_t w) {
    return {reinterpret_cast<collective::Communicator*>(w)};
  }
  static ArgumentValue value(ops::GroupArgument v);
  /// Errors (input): another form. (run): no world is current, or the rank is not in the group.
  static ops::GroupArgument from_value(const ArgumentValue& v);
};

}  // namespace tessera

export namespace tessera::ops {

// Collectives on LOCAL tensors as operators, so that every mode below distribution sees them.
// A dim of `extent` elements over k ranks has shards of ceil(extent / k) elements; the last shards
// may be shorter or empty.
/// Shards along `dim` -> the whole, on every rank of the group.
Tensor all_gather(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                  collective::Communicator& group);
/// This rank's shard along `dim` of the sum (or op) over the ranks.
Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op,
                      collective::Communicator& group);
Tensor all_reduce(const Tensor& x, ReduceOp op, collective::Communicator& group);
/// From shards along `from_dim` to shards along `to_dim`; extents are those of the whole tensor.
Tensor all_to_all(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                  std::int64_t to_dim, collective::Communicator& group);
Tensor broadcast(const Tensor& x, int root, collective::Communicator& group);

/// The result of a collective of local tensors that was issued and may still be in progress. The
/// destructor waits. The operands must not be written before wait() has returned.
class PendingTensor {
 public:
  PendingTensor() = default;
  /// `finish` completes the result when the data has arrived; `kept` stays alive until then.
  PendingTensor(Tensor result, collective::Work work, std::vector<Tensor> kept,
                std::function<void()> finish);
  PendingTensor(PendingTensor&&) noexcept = default;
  PendingTensor& operator=(PendingTensor&&) noexcept;
  PendingTensor(const PendingTensor&) = delete;
  PendingTensor& operator=(const PendingTensor&) = delete;
  ~PendingTensor() = default;

  /// The result, complete. Errors: those of the collective.
  const Tensor& wait();
  /// Whether wait() would return without waiting for others.
  bool done();

 private:
  Tensor result_;
  std::vector<Tensor> kept_;
  std::function<void()> finish_;
  collective::Work work_;  // the last member: its destructor waits before the others are destroyed
};

// The same collectives, issued now and completed in wait(). They have no gradient, and modes do
// not see them: the caller must record them as a step of its own.
PendingTensor all_gather_async(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                               collective::Communicator& group);
PendingTensor reduce_scatter_async(const Tensor& x, std::int64_t dim, ReduceOp op,
                                   collective::Communicator& group);
PendingTensor all_reduce_async(const Tensor& x, ReduceOp op, collective::Communicator& group);
PendingTensor all_to_all_async(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                               std::int64_t to_dim, collective::Communicator& group);

}  // namespace tessera::ops
