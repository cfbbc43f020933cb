module tessera.communication:group_view;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :communicator;
import :operation;
import :state;

namespace tessera::collective {

/// A group as one of its ranks sees it: who the members are, where they are, what each has
/// published, and how far each has come.
class GroupView {
 public:
  /// Another machine with members of the group.
  struct Machine {
    int number = -1;
    std::vector<int> members{};
    std::shared_ptr<Departures> departures{};  ///< of the calls that this rank sends there
  };

  /// `engine`: what moves the group's calls. A wait does not move them: its lock is held.
  GroupView(WorldState& state, GroupBlock* group, Engine* engine);
  GroupView(const GroupView&) = delete;
  GroupView& operator=(const GroupView&) = delete;

  WorldState& state() const { return state_; }
  Region& region() const { return *state_.region; }
  GroupBlock& group() const { return *group_; }
  std::uint64_t group_offset() const { return region().offset_of(group_); }
  std::string_view name() const { return {group_->name, group_->name_bytes}; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The global ranks of the members.
  std::span<const int> ranks() const { return {group_->ranks(), group_->size}; }
  int global_rank(int member) const { return group_->ranks()[member]; }
  /// Whether calls do nothing: a group of a simulated world.
  bool is_fake() const { return state_.transport == Transport::fake; }

  bool is_here(int member) const {
    return state_.bridge == nullptr || state_.bridge->is_here(global_rank(member));
  }
  const std::vector<Machine>& other_machines() const { return other_machines_; }

  Member& own() const { return members_[rank_]; }
  Publication& own_publication(std::uint64_t sequence) const {
    return members_[rank_].publications[sequence % Member::ring];
  }
  const Publication& publication(int member, std::uint64_t sequence) const {
    return members_[member].publications[sequence % Member::ring];
  }
  /// The table that a member has published for a call of a list, or with counts.
  const std::uint64_t* table_of(int member, const Operation& op) const {
    return reinterpret_cast<const std::uint64_t*>(
        region().at(publication(member, op.sequence).source));
  }
  /// Where a member has element 0 of the pieces that the first phase has reduced.
  std::byte* result_of(int member, std::size_t array, const Operation& op) const;

  /// The question what this rank reads of a member.
  ReadRequest reads_of(const Operation& op, const Segment& array, int member) const {
    return pair(op, array, rank_, member);
  }
  /// The question what a reader reads of this rank.
  ReadRequest read_by(const Operation& op, const Segment& array, int reader) const {
    return pair(op, array, reader, rank_);
  }

  /// How many calls all peers are done with.
  inline std::uint64_t all_done() const {
    std::uint64_t minimum = ~std::uint64_t{0};
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) {
        minimum = std::min(minimum, done_counter(r).load());
      }
    }
    return minimum;
  }
  bool peers_done(std::uint64_t calls) const { return all_done() >= calls; }
  /// Waits for, or looks at, one counter of every peer.
  inline bool all_reached(Counter Member::* counter, const Operation& op, bool block) const {
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const bool done = counter == &Member::done;
      Counter& watched = done ? done_counter(r) : members_[r].*counter;
      if (watched.load() >= op.sequence + 1) {
        continue;
      }
      if (!block) {
        return false;
      }
      wait_for_member(watched, op, r, done && !is_here(r));
    }
    return true;
  }
  /// A member that has not issued the call, or else the next member.
  int missing(std::uint64_t sequence) const {
    for (int i = 1; i < size_; ++i) {
      const int member = (rank_ + i) % size_;
      if (members_[member].published.load() <= sequence) {
        return member;
      }
    }
    return (rank_ + 1) % size_;
  }
  /// Waits until all peers are done with the first `calls` calls; `call` and `sequence`: in which
  /// call this rank waits, for the texts of long waits.
  void wait_until_done(std::uint64_t calls, const Call& call, std::uint64_t sequence) const;
  /// Waits for a message of a member. No collective of the group is in the middle of a step, so
  /// they move meanwhile.
  void wait_for_message(Counter& counter, std::uint64_t target, const Call& call,
                        std::uint64_t number, int from) const;

 private:
  void find_machines();
  /// `sent`: until what this rank sends has left.
  void wait_for_member(Counter& counter, const Operation& op, int member, bool sent) const;
  ReadRequest pair(const Operation& op, const Segment& array, int reader, int member) const {
    ReadRequest made{op.call, array, size_, reader, member};
    if (op.form->counts) [[unlikely]] {  // each rank knows its own only
      made.send_begins = member == rank_ ? op.send_begins.data() : nullptr;
      made.receive_begins = reader == rank_ ? op.receive_begins.data() : nullptr;
    }
    return made;
  }
  /// The counter of the calls whose sources a member does not read any more.
  Counter& done_counter(int member) const {
    return done_counters_.empty() ? members_[member].done
                                  : *done_counters_[static_cast<std::size_t>(member)];
  }

  WorldState& state_;
  GroupBlock* group_;
  Engine* engine_;
  Member* members_;
  int rank_ = 0;
  int size_ = 0;
  std::vector<Machine> other_machines_;
  std::vector<Counter*> done_counters_;  // of each member; empty: all are on this machine
};

}  // namespace tessera::collective
