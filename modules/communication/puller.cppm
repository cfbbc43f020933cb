module tessera.communication:puller;

import tessera.base;
import :communicator;
import :group_view;
import :operation;

namespace tessera::collective {

/// Moves the data of a call to this rank, once all peers have published their side: copies or
/// reduces what the call's form says that this rank reads.
class Puller {
 public:
  explicit Puller(const GroupView& group) : group_(group) {}
  /// The first phase. Error: the members' counts differ.
  void pull(const Operation& op);
  /// The second phase: gathers the pieces that the members have reduced.
  void gather_results(const Operation& op);

 private:
  /// Where a member has element 0 of an array (with counts: of what it sends to this rank). This
  /// rank's own as it was given, a peer's through its publication.
  const std::byte* source_of(int member, std::size_t array, const Operation& op) const;
  void check_counts(const Operation& op) const;
  void copy_reads(const Operation& op) const;
  void reduce_reads(const Operation& op);
  /// Reduces `count` elements of sources_.
  void reduce_sources(void* destination, std::int64_t count, const Operation& op);

  const GroupView& group_;
  std::vector<const void*> sources_;  // scratch: of each member
};

}  // namespace tessera::collective
