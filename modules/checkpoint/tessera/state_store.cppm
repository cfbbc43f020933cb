export module tessera.checkpoint:state_store;

import tessera.base;
import tessera.collective;
import tessera.tensor;
import :source;

namespace tessera::checkpoint_detail {
struct StateStoreContent;
}

export namespace tessera {

/// States of a run in memory that outlives its ranks: pages that the process which starts the ranks
/// makes before, and shares with them. There are two generations, which are written in turn, so
/// that one is whole at any time. Nothing of it has a name: it is gone with its last process.
///
/// Another process may have copies of it (StateStore), in a MemoryStateStore of its own for the
/// same ranks.
class MemoryStateStore final : public collective::StateStore {
 public:
  /// For so many ranks, of which `here` (0: all), from `first` on, are on this machine: only these
  /// use the object, and it has the parts of the state that they hold. Address space only: memory
  /// is used as it is written. Error (input): the machine refuses even that.
  explicit MemoryStateStore(int ranks, int first = 0, int here = 0);
  ~MemoryStateStore() override;

  /// From now on the older generation is not overwritten before the newer one is copied too
  /// (set_copied): `keep` waits for that.
  void expect_copies();

  /// Copies what this rank would write into a checkpoint (a part that several ranks hold is kept
  /// once), in place of the older generation. All ranks of the world call it together, with the
  /// same step, each with its own shards; the generation is whole when the last one has returned.
  /// Error, the same on all ranks: a tensor that is Partial or has no memory, the ranks disagree;
  /// of this rank: there is no room, or the newer generation is not copied within the time limit.
  void keep(std::int64_t step, const StateDict& state);

  /// The step of the newest generation that all ranks have kept whole. Any process may ask, also
  /// while ranks keep the next one.
  std::optional<std::int64_t> newest() const;
  /// The newest whole generation, for any mesh of this world's ranks; it stays readable until the
  /// second call of `keep` after this one. Error: there is none.
  std::unique_ptr<TensorSource> open() const;
  /// The steps of the generations that all ranks of this machine have kept whole.
  std::vector<std::int64_t> whole() const override;
  std::optional<collective::StateGeneration> generation(std::int64_t step) const override;
  std::int64_t wait_for_newer(std::int64_t step, double seconds) const override;
  std::vector<std::span<std::byte>> begin_copy(std::span<const std::uint64_t> head) override;
  void end_copy(std::int64_t step) override;
  void set_copied(std::int64_t step) override;
  /// Drops the generations after this step, and those that are not whole: what ranks that ended
  /// have left unfinished can no longer become one. Those that are left count as not copied. To be
  /// called while there are no ranks.
  void drop_after(std::int64_t step);
  /// Bytes of memory that the generations use.
  std::uint64_t bytes() const;

  /// A number that outlives the ranks too: up to which step a run has told its user everything.
  std::int64_t told() const;
  void set_told(std::int64_t step);

 private:
  std::unique_ptr<checkpoint_detail::StateStoreContent> content_;
};

}  // namespace tessera
