module tessera.communication:publisher;

import tessera.base;
import :communicator;
import :group_view;
import :operation;
import :state;

namespace tessera::collective {

/// Shared memory of this rank for sources that peers cannot reach themselves.
class Staging {
 public:
  explicit Staging(WorldState& state) : state_(state) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  /// Room for `bytes` until all peers are done with call `sequence`; `all_done`: the number of
  /// calls that all are done with. The first free block is taken, so that small calls that follow
  /// each other stay in the cache.
  std::uint64_t take(std::size_t bytes, std::uint64_t sequence, std::uint64_t all_done);

 private:
  static constexpr std::size_t kept_bytes = std::size_t{64} << 20;
  struct Block {
    std::uint64_t offset;
    std::size_t bytes;
    std::uint64_t busy_until;
  };
  WorldState& state_;
  std::vector<Block> blocks_;
  std::size_t total_ = 0;
};

/// Publishes this rank's side of a call when it is issued: where the peers find its source, and
/// the piece that it reduces. Memory that they cannot reach is copied.
class Publisher {
 public:
  explicit Publisher(const GroupView& group) : group_(group), staging_(group.state()) {}
  void publish(Operation& op);

 private:
  struct Span {  // elements
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// From the first to the last element of this rank's array that peers read.
  Span read_by_peers(const Operation& op, const Segment& array) const;
  bool overwrites_what_peers_read(const Operation& op, const Span& span) const;
  bool reachable(const void* pointer, std::size_t bytes) const;
  /// Shared memory of this rank until all peers are done with the call.
  std::uint64_t take(std::size_t bytes, const Operation& op) {
    return staging_.take(bytes, op.sequence, group_.all_done());
  }
  /// Copies what peers read, to where element 0 would be at `to`.
  void stage(const Operation& op, const Segment& array, std::uint64_t to) const;
  // Each returns the offset to publish.
  std::uint64_t publish_array(Operation& op);
  std::uint64_t publish_result(Operation& op, std::uint64_t source);
  std::uint64_t publish_list(Operation& op);
  std::uint64_t publish_counts(Operation& op);

  const GroupView& group_;
  Staging staging_;
  std::vector<Span> spans_;  // scratch of lists
};

}  // namespace tessera::collective
