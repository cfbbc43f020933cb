export module tessera.communication:communicator;

import tessera.base;
import tessera.device;
import tessera.calls;
import :buffer;
import :work;

namespace tessera::collective {

class DeviceMover;
struct Operation;

}  // namespace tessera::collective

export namespace tessera::collective {

/// The collectives of one ordered group of ranks. Made by World::communicator and alive as long as
/// the World. Ranks in its calls are positions within the group; counts are elements.
///
/// Every rank of the group issues the same calls in the same order; kind, type, count, operation
/// and root are compared at every call, and a difference is an error on all ranks. avg is for
/// floating types; for bool, sum and max are "or", product and min are "and". Reductions follow a
/// binary tree over the ranks in the group's order: the same bits on every rank and in every run.
/// One thread at a time may use a communicator; other threads take one of another name.
///
/// Calls ending in _async return at once (about a microsecond, plus a copy of the source unless it
/// is in a SharedBuffer), before any other rank has arrived. Peers can then complete their side
/// without this rank; the data that this rank receives moves in Work::wait.
///
/// When a source may be overwritten: as soon as wait() has returned; only after calls over
/// segments may peers continue to read, until wait_sources_free() returns.
///
/// The communicator of a device (World::communicator_on) takes memory of the device. Its calls are
/// queued in stream(device), and the host does not wait: a Work is complete at once, and what is
/// queued there later finds the result. It has no barrier. A receive waits until its sender has
/// queued the message.
class Communicator {
 public:
  Communicator(std::unique_ptr<Engine> engine);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  /// This rank's position in the group.
  int rank() const;
  int size() const;
  /// The group: global ranks in order.
  std::span<const int> global_ranks() const;
  std::string_view name() const;

  /// The stream of this device in which functions that use this communicator are launched. Made at
  /// first use; then nothing else may use the communicator. What is queued is done before the World
  /// ends.
  Stream stream(Device device);

  /// Memory of this rank that the group's ranks can reach. Local: no other rank takes part.
  SharedBuffer allocate(std::size_t bytes);

  /// destination[i] = reduction over ranks of source[i]; source may equal destination.
  void all_reduce(const void* source, void* destination, std::int64_t count, DType dtype,
                  ReduceOp reduce = ReduceOp::sum);
  [[nodiscard]] Work all_reduce_async(const void* source, void* destination, std::int64_t count,
                                      DType dtype, ReduceOp reduce = ReduceOp::sum);

  /// destination [size x count], rank-major, from `count` elements of each rank. The source may be
  /// this rank's row of the destination.
  void all_gather(const void* source, void* destination, std::int64_t count, DType dtype);
  [[nodiscard]] Work all_gather_async(const void* source, void* destination, std::int64_t count,
                                      DType dtype);

  /// source [size x count]; destination: the reduction of row rank(). The destination may be this
  /// rank's row of the source.
  void reduce_scatter(const void* source, void* destination, std::int64_t count, DType dtype,
                      ReduceOp reduce = ReduceOp::sum);
  [[nodiscard]] Work reduce_scatter_async(const void* source, void* destination, std::int64_t count,
                                          DType dtype, ReduceOp reduce = ReduceOp::sum);

  /// Row r of the source [size x count] goes to rank r; row r of the destination is from rank r.
  void all_to_all(const void* source, void* destination, std::int64_t count, DType dtype);
  [[nodiscard]] Work all_to_all_async(const void* source, void* destination, std::int64_t count,
                                      DType dtype);

  /// Like all_to_all, with a count per pair of ranks: send_counts[r] elements to rank r,
  /// receive_counts[r] from it, both packed in rank order. receive_counts must be what the peers
  /// send.
  void all_to_all(const void* source, std::span<const std::int64_t> send_counts, void* destination,
                  std::span<const std::int64_t> receive_counts, DType dtype);
  [[nodiscard]] Work all_to_all_async(const void* source, std::span<const std::int64_t> send_counts,
                                      void* destination,
                                      std::span<const std::int64_t> receive_counts, DType dtype);

  /// Every rank's `data` becomes the root's.
  void broadcast(void* data, std::int64_t count, DType dtype, int root);
  [[nodiscard]] Work broadcast_async(void* data, std::int64_t count, DType dtype, int root);

  /// Row r of the root's source [size x count] goes to rank r; source is used on the root only.
  void scatter(const void* source, void* destination, std::int64_t count, DType dtype, int root);
  [[nodiscard]] Work scatter_async(const void* source, void* destination, std::int64_t count,
                                   DType dtype, int root);

  /// Like scatter, with a count per rank: counts[r] elements go to rank r, from a source that is
  /// packed in rank order. Source and counts are used on the root only; `count` is how many this
  /// rank gets, and must be what the root sends.
  void scatter(const void* source, std::span<const std::int64_t> counts, void* destination,
               std::int64_t count, DType dtype, int root);
  [[nodiscard]] Work scatter_async(const void* source, std::span<const std::int64_t> counts,
                                   void* destination, std::int64_t count, DType dtype, int root);

  /// The root's destination [size x count] gets a row of each rank; used on the root only.
  void gather(const void* source, void* destination, std::int64_t count, DType dtype, int root);
  [[nodiscard]] Work gather_async(const void* source, void* destination, std::int64_t count,
                                  DType dtype, int root);

  /// As all_reduce, but only the root's destination is written.
  void reduce(const void* source, void* destination, std::int64_t count, DType dtype,
              ReduceOp reduce, int root);
  [[nodiscard]] Work reduce_async(const void* source, void* destination, std::int64_t count,
                                  DType dtype, ReduceOp reduce, int root);

  /// Around a ring: rank r's source goes to rank r + by of the group, where the first follows the
  /// last; `by` may be negative. Source may equal destination.
  void shift(const void* source, void* destination, std::int64_t count, DType dtype, int by = 1);
  [[nodiscard]] Work shift_async(const void* source, void* destination, std::int64_t count,
                                 DType dtype, int by = 1);

  /// Returns when every rank of the group has called it.
  void barrier();
  [[nodiscard]] Work barrier_async();

  /// One message to (from) a rank of the group. Messages of one sender, receiver and tag arrive in
  /// order; count and type must agree. A send copies its source into shared memory and completes
  /// without its receiver. Error: there is no room for one more message.
  void send(const void* source, std::int64_t count, DType dtype, int to, int tag = 0);
  [[nodiscard]] Work send_async(const void* source, std::int64_t count, DType dtype, int to,
                                int tag = 0);
  void receive(void* destination, std::int64_t count, DType dtype, int from, int tag = 0);
  [[nodiscard]] Work receive_async(void* destination, std::int64_t count, DType dtype, int from,
                                   int tag = 0);

  /// Gathers all segments in one call; each destination becomes contiguous in rank order. `moved`
  /// is compared by the ranks, where it is given.
  [[nodiscard]] Work all_gather_async(std::span<const Segment> segments, DType dtype,
                                      std::optional<PayloadIdentity> moved = {});
  void all_gather(std::span<const Segment> segments, DType dtype);

  /// Reduces all segments in one call; each destination gets this rank's piece.
  [[nodiscard]] Work reduce_scatter_async(std::span<const Segment> segments, DType dtype,
                                          const ReduceSegmentsOptions& options = {});
  void reduce_scatter(std::span<const Segment> segments, DType dtype,
                      const ReduceSegmentsOptions& options = {});

  /// Reduces all segments in one call, on every rank and in place: of each, `source` and
  /// `destination` are the same `total` elements; `chunk` is not used. Of the options, `reduce`,
  /// `terms` and `moved` are.
  [[nodiscard]] Work all_reduce_async(std::span<const Segment> segments, DType dtype,
                                      const ReduceSegmentsOptions& options = {});

  /// A call of any kind in which all ranks have tensors of one length, by its row in the table of
  /// forms: what a new kind needs, before it has a function above. `number` is Call::root.
  [[nodiscard]] Work issue(CallKind kind, const void* source, void* destination, std::int64_t count,
                           DType dtype, ReduceOp reduce = ReduceOp::sum, int number = -1);

  /// Waits until every peer has finished reading the sources of all calls that this rank has
  /// issued here (an optimizer calls it before it writes parameters that were gathered from their
  /// own storage). Completes this rank's own calls first. Nothing is sent; usually it is a load.
  void wait_sources_free();
  /// Whether wait_sources_free() would return at once. Never blocks.
  bool sources_free();
  /// Keeps the memory of sources, which nobody writes any more, until every peer has finished
  /// reading the sources of all calls that were issued here. It goes away in a later call of this
  /// function or of drop_read(), or with the World.
  void keep_until_read(std::shared_ptr<void> sources);
  /// Drops what keep_until_read() was given and nobody reads any more. Never blocks.
  void drop_read();

  /// Returns when everything that was queued in its streams is done. Errors of it are published to
  /// the world by whoever queued it.
  void finish_streams() noexcept;

 private:
  friend class DeviceCommunicators;
  Work issue(Operation&& operation);
  /// From now on the data of calls is in a device's memory.
  void attach(std::unique_ptr<DeviceMover> mover);

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DeviceMover> mover_;  // null: the host moves the data
  std::vector<Stream> streams_;         // one for each device that has used it
};

}  // namespace tessera::collective
