export module tessera.ops:collective;

import tessera.base;
import tessera.tensor;
import tessera.collective;

export namespace tessera::ops {

/// Ranks that communicate. Interned for the life of the process.
struct RankGroup : CallGroup {
  std::string stream_name;             // of the communicator for calls that wait in a stream
  collective::MemberRange terms = {};  // of reductions; none: all ranks
  const RankGroup* whole = nullptr;    // the same ranks, of which all are terms; null: this one
};

/// A group of ranks as an operator's argument; its text has the ranks and the communicator's name.
/// The communicator is looked up when an operator runs: to plan a call, no other rank is needed.
struct GroupArgument {
  const RankGroup* group = nullptr;

  /// `terms`: those of the ranks whose tensors go into a reduction, which all ranks get. Only
  /// reduce_scatter_into and all_reduce_coalesced_ take a group of which not all ranks are terms.
  static GroupArgument of(std::span<const int> ranks, std::string_view name = "",
                          const collective::MemberRange& terms = {});
  static GroupArgument of(const collective::Communicator& communicator);

  inline int size() const { return static_cast<int>(group->ranks.size()); }
  /// The calling rank's position. Error: it is not in the group.
  int rank() const;
  /// Within a call that runs in a stream: that of stream_communicator(), or the one of the device
  /// whose tensors the call has. Errors: the current world does not have these ranks; not all of
  /// them are terms.
  collective::Communicator& communicator() const;
  /// The same ranks, of which all are terms of reductions.
  inline GroupArgument whole() const {
    return group == nullptr || group->whole == nullptr ? *this : GroupArgument{group->whole};
  }
  /// The same ranks with these terms.
  inline GroupArgument with_terms(const collective::MemberRange& terms) const {
    return terms.count == 0 ? *this : of(group->ranks, group->name, terms);
  }
  /// The communicator that only the streams use that it has.
  collective::Communicator& stream_communicator() const;
};

/// A group as a function's parameter: a communicator, or ranks of which there is none yet.
class Ranks {
 public:
  Ranks(const collective::Communicator& communicator)  // NOLINT(google-explicit-constructor)
      : group_(GroupArgument::of(communicator)) {}
  Ranks(GroupArgument group) : group_(group) {}             // NOLINT(google-explicit-constructor)
  inline operator GroupArgument() const { return group_; }  // NOLINT(google-explicit-constructor)

 private:
  GroupArgument group_;
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
    return {reinterpret_cast<const ops::RankGroup*>(w)};
  }
  static ArgumentValue value(ops::GroupArgument v);
  static inline const CallGroup* group(ops::GroupArgument v) { return v.whole().group; }
  /// Errors (input): another form.
  static ops::GroupArgument from_value(const ArgumentValue& v);
};

}  // namespace tessera

export namespace tessera::ops {

// Collectives on LOCAL tensors as operators, so that every mode below distribution sees them. On
// meta tensors they have shapes and nobody communicates.
// A dim of `extent` elements over k ranks has shards of ceil(extent / k) elements; the last shards
// may be shorter or empty.
/// Shards along `dim` -> the whole, on every rank of the group.
Tensor all_gather(const Tensor& shard, std::int64_t dim, std::int64_t extent, Ranks group);
/// This rank's shard along `dim` of the sum (or op) over the ranks.
Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op, Ranks group);
Tensor all_reduce(const Tensor& x, ReduceOp op, Ranks group);
/// Writes the reduction into x, which is contiguous.
void all_reduce_(const Tensor& x, ReduceOp op, Ranks group);
/// From shards along `from_dim` to shards along `to_dim`; extents are those of the whole tensor.
Tensor all_to_all(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                  std::int64_t to_dim, Ranks group);
Tensor broadcast(const Tensor& x, int root, Ranks group);
/// Around the ring of the group's ranks, which all have one shape and type: the x of the rank `by`
/// places before this one, where the last precedes the first; `by` may be negative. Has a gradient:
/// the shift back.
Tensor shift(const Tensor& x, std::int64_t by, Ranks group);
/// The x of the rank that is as far from the group's last one as this rank is from its first one,
/// and `by` places further around the ring: rank r of n has that of (n - 1 - r + by) mod n. All
/// have one shape and type; `by` may be negative. Twice is x. Has a gradient: itself.
Tensor mirror(const Tensor& x, std::int64_t by, Ranks group);
/// Sends x to rank `to` of the group, without waiting for it. Messages of one sender, receiver and
/// tag arrive in order. No gradient. Errors: see Communicator::send.
void send(const Tensor& x, int to, std::int64_t tag, Ranks group);
/// Fills x, which is contiguous, with the message of rank `from`: as many elements of its type.
void receive_(const Tensor& x, int from, std::int64_t tag, Ranks group);

/// The order of rows that belong to groups and come from, or go to, ranks: by rank and then by
/// group, or by group and then by rank.
enum class RowOrder : std::uint8_t { by_rank, by_group };
/// An all-to-all by counts, of rows x [n, ...] that belong to groups (experts, of which each rank
/// owns some). Has a gradient: the way back.
/// `sends`, `receives`: i64 [ranks, groups]. sends[p, g] rows go to rank p, for its group g;
/// receives[p, g] rows come from it. Rows of x after those that are sent are ignored.
/// `result`: by_group, there: x is by rank. by_rank, back: x is by group.
/// Returns [rows, ...], with 0 after the rows that arrive: the shape does not depend on counts.
/// Errors: counts that do not fit into x or into `rows`, or that another rank contradicts.
Tensor all_to_all_rows(const Tensor& x, const Tensor& sends, const Tensor& receives,
                       std::int64_t rows, RowOrder result, Ranks group);

/// The sources of a call over segments. Other ranks may still read them when the call has ended on
/// this one: from then on the communicator keeps them until nobody does.
class CallSources {
 public:
  CallSources() = default;
  CallSources(std::vector<Tensor> sources, collective::Communicator& of)
      : sources_(std::move(sources)), communicator_(&of) {}
  CallSources(CallSources&&) = default;
  CallSources& operator=(CallSources&&) = delete;
  CallSources(const CallSources&) = delete;
  CallSources& operator=(const CallSources&) = delete;
  /// The call has ended, or the program drops its result; errors are the next call's.
  ~CallSources();
  /// The call has ended.
  void hand_over();

 private:
  std::vector<Tensor> sources_;
  collective::Communicator* communicator_ = nullptr;
};

/// A collective in progress, as the memory of its result has it until wait() completes it. If the
/// memory goes away before, the destructor completes the communication.
class PendingCollective : public PendingWork {
 public:
  /// The result may be used then: by the host, or by what the current stream of the result's device
  /// does from now on. Errors: those of the collective.
  virtual void complete(const Tensor& result) = 0;
  /// Whether complete() would not wait for others.
  virtual bool done() = 0;
};

/// One whose data moves when it is waited for.
class IssuedCollective final : public PendingCollective {
 public:
  /// `finish` completes the result when the data has arrived; `kept` stays alive until then. It
  /// must not hold the result, whose memory holds this object.
  explicit IssuedCollective(collective::Work work = {}, std::vector<Tensor> kept = {},
                            std::function<void(const Tensor& result)> finish = nullptr);
  IssuedCollective(collective::Work work, std::vector<Tensor> kept, CallSources sources);
  void complete(const Tensor& result) override;
  bool done() override { return work_.done(); }

 private:
  std::vector<Tensor> kept_;
  CallSources sources_;
  std::function<void(const Tensor&)> finish_;
  collective::Work work_;  // the last member: its destructor waits before the others are destroyed
};

// A collective in a stream: the group's own, ordered with the current one by events. The host does
// not wait. One function, the operator's kernel of the CPU, does it in three ways:
// - the device has a communicator for the group: the kernel queues calls of it, on tensors of the
//   device (data_of(), GroupArgument::communicator());
// - it has none: operands are copied to the host, the kernel runs on a thread, results return;
// - on the CPU: the kernel runs on a thread, on the tensors themselves.

/// The memory of a tensor, as the communicator of its device takes it.
inline void* data_of(const Tensor& x) { return is_on_host(x) ? x.raw_data() : x.device_address(); }

/// Whether an in-place operator also reads what it writes.
enum class WriteAccess : std::uint8_t { and_read, only };

/// Whether the world communicates in the background, and the calling thread is not in a stream.
bool in_background();
/// The call in the group's stream; what is queued from now on in the current stream runs after it.
/// On the CPU the host waits.
void communicate_in_stream(const Call& call, std::span<Tensor> out, GroupArgument group);
/// The call in the group's stream, for wait() to complete.
void issue_in_stream(const Call& call, std::span<Tensor> out, GroupArgument group,
                     WriteAccess written = WriteAccess::and_read);

/// Tells the calling thread's observers which of its calls in streams of devices have ended. Calls
/// in streams of the CPU are reported when they are waited for.
void report_streams();

/// Op::any_device of operators with a `group` among their arguments.
template <class Args>
void in_stream(const Call& call, std::span<Tensor> out) {
  communicate_in_stream(call, out, call.args<Args>().group);
}
/// Registers an in-place operator that only issues its call.
template <class Args, WriteAccess written = WriteAccess::and_read>
void issued_in_stream(const Call& call, std::span<Tensor> out) {
  issue_in_stream(call, out, call.args<Args>().group, written);
}
/// The CPU's kernel of an operator that issues what `start(call, result)` begins.
template <class Args, auto start>
void issued_on_host(const Call& call, std::span<Tensor> out) {
  if (in_background()) {
    issue_in_stream(call, out, call.args<Args>().group);
  } else {
    out[0].storage().set_pending(start(call, out[0]));
  }
}

/// Completes what was issued for x: until then, nothing may use x, or write the operands of the
/// operator that issued it. On a device, the current stream waits and the host does not. Errors:
/// nothing was issued; those of the collective.
void wait(const Tensor& x);

/// The result of an operator that issued a collective of local tensors. Modes below distribution
/// see that operator, and the wait. If it is destroyed without wait(), the communication completes
/// and the result is dropped; all ranks must do the same.
class PendingTensor {
 public:
  PendingTensor() = default;
  /// The result of an operator that issues.
  explicit PendingTensor(Tensor result) : result_(std::move(result)), issued_(true) {}

  /// The result, complete. Errors: those of the collective.
  const Tensor& wait();
  /// Whether wait() would return without waiting for others.
  bool done() const;
  /// The result before wait(): nothing may use it but another PendingTensor of it, which waits. A
  /// recorded step of backward can pass it on to the next one in this way.
  inline const Tensor& in_flight() const { return result_; }

 private:
  Tensor result_;
  bool issued_ = false;
};
/// Calls an operator that issues, below distribution.
PendingTensor issue(const Op& op, std::initializer_list<Tensor> in, const Attributes& attributes);

// Asynchronous collectives: issued now, completed in wait(). They have no gradient: the caller must
// record them as a step of its own.
PendingTensor all_gather_async(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                               Ranks group);
PendingTensor reduce_scatter_async(const Tensor& x, std::int64_t dim, ReduceOp op, Ranks group);
PendingTensor all_reduce_async(const Tensor& x, ReduceOp op, Ranks group);
PendingTensor all_to_all_async(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                               std::int64_t to_dim, Ranks group);
PendingTensor shift_async(const Tensor& x, std::int64_t by, Ranks group);
PendingTensor mirror_async(const Tensor& x, std::int64_t by, Ranks group);
PendingTensor all_to_all_rows_async(const Tensor& x, const Tensor& sends, const Tensor& receives,
                                    std::int64_t rows, RowOrder result, Ranks group);

// Many tensors in one call, for styles and gradients. Shards are of dim 0. `identity` is
// compared between the ranks: those that are about to exchange different tensors of the same shapes
// get an error.
/// Issues the gather of all wholes [n, ...] from this rank's shards of dim 0, of any types. All
/// wholes are of one memory; wait(wholes[0]) completes them. Peers may read the shards until
/// wait_readers() has returned. Versions of the wholes stay: they are gathered again, not changed.
void all_gather_into(std::span<const Tensor> wholes, std::span<const Tensor> shards, Ranks group,
                     std::int64_t identity);
/// Issues the reductions of `wholes` into this rank's shards of dim 0. wait(shards[0]) completes
/// them: until then, nothing may use any of them. Peers may read `wholes` until wait_readers() has
/// returned. Sums of 16-bit wholes are formed in f32; where the shards are f32, they stay so.
void reduce_scatter_into(std::span<const Tensor> shards, std::span<const Tensor> wholes,
                         ReduceOp op, Ranks group, std::int64_t identity);
/// Issues the reduction of each tensor over the ranks, in place; they are contiguous and of one
/// type. wait(tensors[0]) completes all: until then, nothing may use any of them. `step` is
/// compared too, and may change from call to call: a call that one rank has left over fits no later
/// one.
void all_reduce_coalesced_(std::span<const Tensor> tensors, ReduceOp op, Ranks group,
                           std::int64_t identity, const Count& step = 0);
/// Returns when no peer reads the sources of all_gather_into and reduce_scatter_into any more;
/// `sources` may be written then. There must be one of them. (Sources that are only dropped need no
/// call: their memory stays as long as a peer reads it.)
void wait_readers(std::span<const Tensor> sources, Ranks group);

/// Contiguous memory that the group's ranks can reach, not initialised; on the meta device none.
/// Booked under the scope's category. Local: no other rank takes part.
Tensor shared_empty(const Dims& shape, DType dtype, Ranks group, Device device = cpu);

}  // namespace tessera::ops
